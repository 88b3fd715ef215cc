package doctor

import "github.com/ml-dev-env/ml-dev-env/internal/rdma"

// told is what the nodes' settings were derived with.
func (e *examination) told() (rdma.Expected, map[string]string) {
	return rdma.Expected{}, nil
}

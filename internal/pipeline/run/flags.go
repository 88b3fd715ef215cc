package run

import (
	"errors"

	"github.com/spf13/pflag"
)

// Flags say which PipelineRun a step is part of. Without them it is run by hand.
type Flags struct {
	Name string
	UID  string
	// Task is the step's name in the pipeline.
	Task string
}

// AddTo adds --run-name, --run-uid and --task-name.
func (f *Flags) AddTo(flags *pflag.FlagSet) {
	flags.StringVar(&f.Name, "run-name", "", "name of the PipelineRun that this is part of (default: none, run by hand)")
	flags.StringVar(&f.UID, "run-uid", "", "UID of that PipelineRun")
	flags.StringVar(&f.Task, "task-name", "", "name of this task in the pipeline")
}

// Check finds flags that do not go together.
func (f *Flags) Check() error {
	if (f.Name == "") != (f.UID == "") {
		return errors.New("--run-name and --run-uid go together: want both or none")
	}
	return nil
}

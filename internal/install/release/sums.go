package release

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// writeSums writes the checksums of all other files of the folder for sha256sum --check.
func (r *Release) writeSums() error {
	entries, err := os.ReadDir(r.request.To)
	if err != nil {
		return fmt.Errorf("writing the checksums: %w", err)
	}
	var sums strings.Builder
	for _, entry := range entries {
		content, err := os.ReadFile(filepath.Join(r.request.To, entry.Name()))
		if err != nil {
			return fmt.Errorf("writing the checksums: %w", err)
		}
		fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(content), entry.Name())
	}
	return r.write(sumsFile, []byte(sums.String()))
}

package runs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/report"
)

// writePage writes the report of a run into a new file, or to out for -. A file that could
// not be written whole is taken away.
func writePage(out io.Writer, path string, r receipt.Receipt) error {
	if path == "-" {
		return report.Write(out, r)
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if errors.Is(err, fs.ErrExist) {
		return wrongUsage(fail.Advise(fail.Becausef(fail.InvalidInput, "writing the report %s: the file exists, want a new one", path),
			"name another file, or remove it: rm %s", path))
	} else if err != nil {
		return wrongUsage(fail.Becausef(fail.InvalidInput, "writing the report: %w", err))
	}
	if err := errors.Join(report.Write(file, r), file.Close()); err != nil {
		os.Remove(path)
		return fmt.Errorf("writing the report %s: %w", path, err)
	}
	fmt.Fprintf(out, "The report of run %s/%s is %s.\n", r.Namespace, r.Run, path)
	return nil
}

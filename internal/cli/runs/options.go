// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/ml-dev-env/ml-dev-env/internal/cli/envflags"
	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/env/local"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/launch"
	"github.com/ml-dev-env/ml-dev-env/internal/source/git"
)

// withEarlierLocal adds the params of the local run that --like or --resume-from names.
func (o *runOptions) withEarlierLocal() error {
	values, err := o.addEarlier(func(_, name string) (r runInfo, values map[string][]string, err error) {
		of, ok := local.Find(name)
		if !ok {
			return r, nil, fail.Advise(fail.Becausef(fail.InvalidInput, "looking for local run %s: this machine has none of that name", name),
				"mlenv runs --local")
		}
		if r, err = localOf(of); err == nil {
			values, err = r.at.givenParams(r)
		}
		return r, values, err
	})
	if err == nil {
		o.values = values
	}
	return err
}

type runOptions struct {
	kube           kube.Flags
	params         params
	runName        string
	serviceAccount string
	like           string
	resumeFrom     string
	module         envflags.Module
	local          localRun
	// file is the path of a job file, "" for none.
	file           string
	detach, dryRun bool
	// values are the params on the command line.
	values map[string][]string
	// packed is the folder to train from, nil for a repository.
	packed *packedFolder
}

func (o *runOptions) parse(cmd *cobra.Command, args []string) error {
	inFile, noFile := o.readFile()
	var invalid error
	o.values, invalid = o.params.values(cmd)
	problems := []error{noFile}
	dash := cmd.ArgsLenAtDash()
	if dash >= 0 {
		args, o.values["script-args"] = args[:dash], args[dash:]
	}
	earlier := o.like != "" || o.resumeFrom != ""
	flags := cmd.Flags()
	if module := o.module.Script(); module != "" {
		problems = append(problems, command.Want(len(args) < 2 && !flags.Changed("script"), "-m %s and a script: want one of them",
			string(o.module)))
		args, o.values["script"] = args[:min(len(args), 1)], []string{module}
	}
	for i, of := range []struct{ flag, what string }{
		{"repo-url", "the repository's URL, or a folder, such as . for this one"},
		{"script", "the training script"},
	} {
		switch {
		case len(args) > i && args[i] != "":
			o.values[of.flag] = []string{args[i]}
			if flags.Changed(of.flag) {
				problems = append(problems, fmt.Errorf("argument %q and --%s: want one of them", args[i], of.flag))
			}
		case o.values[of.flag] == nil && inFile[of.flag] == nil && !earlier && noFile == nil:
			problems = append(problems, fmt.Errorf("an argument is missing: want %s", of.what))
		}
	}
	if len(args) > 0 {
		problems = append(problems, misplaced(args))
	}
	problems = append(problems, command.Want(o.local.on || o.local.python == "", "--python: want --local with it; on a cluster the image "+
		"has the Python"))
	problems = append(problems, checkNames(o.runName, o.serviceAccount),
		command.Want(len(args) <= 2, "arguments %q: want a repository and a script; arguments of the script go after --",
			args[min(2, len(args)):]),
		command.Want(dash < 0 || !flags.Changed("script-args"), "arguments after -- and --script-args: want one of them"), invalid)
	if err := errors.Join(problems...); err != nil {
		return err
	}
	maps.Copy(inFile, o.values)
	o.values = inFile
	expandHome(o.values)
	return nil
}

// checkNames returns the mistakes in names of objects, which the API server would refuse later, or Tekton as a failure of the run.
func checkNames(runName, account string) error {
	return errors.Join(
		command.Want(runName == "" || len(validation.IsDNS1123Label(runName)) == 0,
			"--run-name %q: want lower-case letters, digits and hyphens, a letter or digit first and last, at most 63", runName),
		command.Want(account == "" || len(validation.IsDNS1123Subdomain(account)) == 0,
			"--service-account %q: want the name of a ServiceAccount", account))
}

// misplaced returns the mistake in a first argument that names a folder or file of this machine in another way than isFolder knows.
func misplaced(args []string) error {
	argument, rest := args[0], strings.Join(append([]string{""}, args[1:min(len(args), 2)]...), " ")
	if path, ok := strings.CutPrefix(argument, "file://"); ok {
		return fmt.Errorf("argument %q: a folder has no scheme: mlenv run %s%s", argument, path, rest)
	}
	info, err := os.Stat(argument)
	switch {
	case err != nil:
		return nil //nolint:nilerr // it names nothing on this machine
	case !info.IsDir():
		dir := filepath.Dir(argument)
		if dir != "." && !filepath.IsAbs(dir) {
			dir = "./" + dir
		}
		return fmt.Errorf("argument %q is a file: want its folder first: mlenv run %s %s", argument, dir, filepath.Base(argument))
	case !isFolder(map[string][]string{"repo-url": {argument}}):
		return fmt.Errorf("argument %q: a folder begins with ./, as in mlenv run ./%[1]s%[2]s", argument, rest)
	}
	return nil
}

// readFile returns the params in the job file. Its resume-from counts unless a flag names an earlier run.
func (o *runOptions) readFile() (map[string][]string, error) {
	if o.file == "" {
		return map[string][]string{}, nil
	}
	values, resumeFrom, err := o.params.readJob(o.file)
	if o.like == "" && o.resumeFrom == "" {
		o.resumeFrom = resumeFrom
	}
	return values, err
}

// output is for messages: with --detach, standard output gets only the name.
func (o *runOptions) output(cmd *cobra.Command) io.Writer {
	if o.detach {
		return cmd.ErrOrStderr()
	}
	return cmd.OutOrStdout()
}

// prepare packs the folder that the values name, nil if they name a repository. It reports mistakes in the folder and in
// all params in one pass.
func (o *runOptions) prepare(ctx context.Context, pipeline *v1.Pipeline, values map[string][]string) (upload *packedFolder, err error) {
	if isFolder(values) {
		upload, err = packFolder(ctx, pipeline, values)
	}
	if _, invalid := launch.Params(pipeline, values); invalid != nil {
		err = errors.Join(err, command.Usage(invalid))
	}
	switch {
	case upload == nil:
		return nil, err
	case err != nil:
		upload.remove()
		return nil, err
	}
	o.packed = upload
	return upload, nil
}

// addEarlier returns the params on the command line, added to those of the run that --like or --resume-from names. read gets the flag and
// the name.
func (o *runOptions) addEarlier(read func(flag, name string) (runInfo, map[string][]string, error)) (map[string][]string, error) {
	flag, name := "--like", o.like
	if o.resumeFrom != "" {
		flag, name = "--resume-from", o.resumeFrom
	}
	if name == "" {
		return o.values, nil
	}
	earlier, values, err := read(flag, name)
	if err != nil {
		return nil, err
	}
	if isFolder(o.values) || o.values["repo-url"] == nil && isFolder(values) {
		delete(values, "revision") // it names a commit of the other folder, or of this one as it was, or of a repository
	}
	maps.Copy(values, o.values)
	if o.resumeFrom != "" {
		earlier.resumeFrom(values, o.values)
	}
	if url := values["repo-url"]; len(url) == 1 && git.IsFolder(url[0]) {
		return nil,
			fail.Advise(fail.Becausef(fail.InvalidInput, "starting a run with %s %s: that run trained from a folder: want the folder again, or a "+
				"repository", flag, name),
				"mlenv run . %s %s", flag, name)
	}
	return values, nil
}

// withEarlier is addEarlier for a run on the cluster.
func (o *runOptions) withEarlier(ctx context.Context, clients *kube.Clients) (map[string][]string, error) {
	return o.addEarlier(func(flag, name string) (r runInfo, values map[string][]string, err error) {
		if r, err = findRun(ctx, clients, name); err == nil {
			values, err = r.at.givenParams(r)
		} else if _, here := local.Find(name); here && fail.ReasonOf(err) == fail.InvalidInput {
			err = fail.Advise(fail.Becausef(fail.InvalidInput, "starting a run with %s %s: that is a local run, and its files are on this machine",
				flag, name),
				"mlenv run --local %s %s", flag, name)
		}
		if err == nil && r.run.Annotations[chosenAnnotation] != "" && sharesWorkspace(ctx, clients, r.param("cluster")) {
			delete(values, "name")
		}
		delete(values, "steps-image") // the installed pipeline may have a newer one
		return r, values, err
	})
}

// localRun is a run on nodes that are parts of this machine.
type localRun struct {
	on     bool
	python string
}

func (l *localRun) addTo(flags *pflag.FlagSet) {
	flags.BoolVar(&l.on, "local", false, "train on this machine, without a cluster: each node is a process group with its part of the GPUs")
	flags.StringVar(&l.python, "python", "", "with --local, the path of the ranks' python3, such as a virtual environment's (default: "+
		"the one in PATH)")
}

// givenParams returns the params of the command line, with an absolute path of the folder.
func (o *runOptions) givenParams() map[string][]string {
	values := maps.Clone(o.values)
	if isFolder(values) {
		if dir, err := filepath.Abs(values["repo-url"][0]); err == nil {
			values["repo-url"] = []string{dir}
		}
	}
	return values
}

// paramValue returns the run's value of a param, or the pipeline's default.
func (o *runOptions) paramValue(name string) string {
	return launch.ParamValue(o.params.pipeline, o.values, name)
}

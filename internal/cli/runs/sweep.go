// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/ml-dev-env/ml-dev-env/internal/command"
)

// sweep is what the flags of a sweep ask for: a run, called a trial, for each combination of the values.
type sweep struct {
	given    []string
	parallel int
	output   command.OutputFlag
	// axes are the given ones, which parse reads. There are none without a sweep.
	axes []axis
}

// axis is an argument of the script with its values.
type axis struct {
	name   string
	values []string
}

// setting is an argument with one of its values.
type setting struct{ name, value string }

// trial is one run of a sweep.
type trial struct {
	name     string
	settings []setting
	// args are all arguments of the script.
	args []string
}

// mostTrials bounds the runs of a sweep. Each is an object on the cluster, and a line in a table.
const mostTrials = 100

// longestSweep bounds the name of a sweep: the name of a trial, which has its number in addition, is a label of Kubernetes.
var longestSweep = 63 - len("-"+strconv.Itoa(mostTrials))

func (s *sweep) addTo(flags *pflag.FlagSet) {
	flags.StringArrayVar(&s.given, "sweep", nil, "ARG=VALUE,VALUE,... or ARG=FIRST..LAST: one run for each value, with --ARG=VALUE after the "+
		"script's arguments, or in place of {ARG} in them. Given several times: one run for each combination")
	flags.IntVar(&s.parallel, "parallel", 1, "with --sweep: how many runs are in progress at the same time")
	s.output.AddUse(flags, "with --sweep: the table as text, or json or yaml for programs", command.Text, command.JSON, command.YAML)
}

// checkSweep reads the sweep, and returns all mistakes in it and in the flags that it does not allow. named reports whether the trials have
// an environment by name.
func (o *runOptions) checkSweep(flags *pflag.FlagSet, named bool) error {
	s := &o.sweep
	if !s.on() {
		return errors.Join(command.Want(!flags.Changed("parallel"), "--parallel: want --sweep with it"),
			command.Want(!flags.Changed("output"), "--output: want --sweep with it"))
	}
	problems := []error{
		s.parse(),
		command.Want(s.parallel >= 1 && s.parallel <= mostTrials, "--parallel %d: want 1 to %d", s.parallel, mostTrials),
		command.Want(s.parallel <= 1 || !named, "--parallel=%d and --name: want one of them; an environment has one run at a time", s.parallel),
		command.Want(s.parallel <= 1 || !o.local.on, "--parallel=%d and --local: the trials share the GPUs of this machine, and run one after "+
			"another; leave out --parallel", s.parallel),
		command.Want(o.resumeFrom == "", "--sweep and --resume-from: the trials would write the same checkpoints; want one of them"),
		command.Want(len(o.runName) <= longestSweep, "--run-name %q: want at most %d characters for a sweep, to which the trials add a number",
			o.runName, longestSweep),
	}
	if err := errors.Join(problems...); err != nil {
		return err
	}
	return command.Want(!o.detach || o.local.on || s.parallel >= s.count(),
		"--detach with --parallel=%d: no program would start the rest of the %d trials; want --parallel=%[2]d", s.parallel, s.count())
}

// on reports whether the command line asks for a sweep.
func (s *sweep) on() bool { return len(s.given) > 0 }

// count returns the number of trials, at most one more than are allowed.
func (s *sweep) count() int {
	count := 1
	for _, a := range s.axes {
		count = min(count*len(a.values), mostTrials+1)
	}
	return count
}

// parse reads the axes, and returns all mistakes in them.
func (s *sweep) parse() error {
	var problems []error
	times := map[string]int{}
	for _, given := range s.given {
		a, err := parseAxis(given)
		problems = append(problems, err)
		if times[a.name]++; times[a.name] == 2 {
			problems = append(problems, fmt.Errorf("--sweep %s is given several times: want all its values in one", a.name))
		}
		s.axes = append(s.axes, a)
	}
	if err := errors.Join(problems...); err != nil {
		return err
	}
	return command.Want(s.count() <= mostTrials, "--sweep: more than %d combinations: want at most %[1]d", mostTrials)
}

var (
	axisName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]*$`)
	// wholeRange matches FIRST..LAST with two numbers as they are usually written.
	wholeRange = regexp.MustCompile(`^(0|-?[1-9][0-9]*)\.\.(0|-?[1-9][0-9]*)$`)
)

// parseAxis reads ARG=VALUE,VALUE,...; a value may be a range. The error lists all mistakes.
func parseAxis(given string) (a axis, err error) {
	name, list, ok := strings.Cut(given, "=")
	if a.name = name; !ok {
		return a, fmt.Errorf("--sweep %q: want ARG=VALUE,VALUE,... or ARG=FIRST..LAST", given)
	}
	problems := []error{command.Want(axisName.MatchString(name),
		"--sweep %q: argument %q: want letters, digits, hyphens, dots and underscores, without hyphens before it", given, name)}
	seen := map[string]bool{}
	for item := range strings.SplitSeq(list, ",") {
		values, err := valuesOf(item)
		if err != nil {
			problems = append(problems, fmt.Errorf("--sweep %q: %w", given, err))
		}
		for _, value := range values {
			if seen[value] {
				problems = append(problems, fmt.Errorf("--sweep %q: value %s is there twice: want each once", given, value))
				break
			}
			seen[value] = true
			a.values = append(a.values, value)
		}
	}
	return a, errors.Join(problems...)
}

// valuesOf returns the values of one item of a list. A path may have two dots; any other item with them must be a range.
func valuesOf(item string) ([]string, error) {
	switch {
	case item == "":
		return nil, errors.New("a value is empty: want a value before and after each comma")
	case strings.TrimSpace(item) != item:
		return nil, fmt.Errorf("value %q: want no space around it", item)
	case !strings.Contains(item, "..") || strings.ContainsAny(item, `/\`) || item == "..":
		return []string{item}, nil
	}
	ends := wholeRange.FindStringSubmatch(item)
	if ends == nil {
		return nil, fmt.Errorf("range %q: want FIRST..LAST with two whole numbers, as in 1..3", item)
	}
	first, errFirst := strconv.ParseInt(ends[1], 10, 32)
	last, errLast := strconv.ParseInt(ends[2], 10, 32)
	switch {
	case errFirst != nil || errLast != nil:
		return nil, fmt.Errorf("range %q: want numbers of at most 32 bits", item)
	case first > last:
		return nil, fmt.Errorf("range %q: want the smaller number first", item)
	case last-first >= mostTrials:
		return nil, fmt.Errorf("range %q: %d values: want at most %d", item, last-first+1, mostTrials)
	}
	var values []string
	for n := first; n <= last; n++ {
		values = append(values, strconv.FormatInt(n, 10))
	}
	return values, nil
}

// combinations returns the settings of each trial. The values of the last axis change first.
func (s *sweep) combinations() [][]setting {
	all := [][]setting{nil}
	for _, a := range s.axes {
		var next [][]setting
		for _, settings := range all {
			for _, value := range a.values {
				next = append(next, append(slices.Clone(settings), setting{a.name, value}))
			}
		}
		all = next
	}
	return all
}

// trials returns the trials of the sweep with this name, for a script with these arguments. The same command always gives the same names.
func (s *sweep) trials(name string, args []string) (all []trial) {
	for i, settings := range s.combinations() {
		all = append(all, trial{name: fmt.Sprintf("%s-%d", name, i+1), settings: settings, args: withSettings(args, settings)})
	}
	return all
}

// withSettings returns the arguments with each setting in place of its {name}, or else after them.
func withSettings(args []string, settings []setting) []string {
	all := slices.Clone(args)
	for _, s := range settings {
		placeholder, used := "{"+s.name+"}", false
		for i := range args {
			used = used || strings.Contains(args[i], placeholder)
			all[i] = strings.ReplaceAll(all[i], placeholder, s.value)
		}
		if !used {
			all = append(all, "--"+s.name+"="+s.value)
		}
	}
	return all
}

// text returns the settings as in "lr=1e-4 seed=1".
func (t trial) text() string {
	var words []string
	for _, s := range t.settings {
		words = append(words, s.name+"="+s.value)
	}
	return strings.Join(words, " ")
}

// name returns a name for the sweep of a request, which is the same for the same request.
func (s *sweep) name(request ...any) string {
	const digits = 8
	text, err := json.Marshal(append(request, s.given))
	if err != nil {
		panic(err) // requests are strings, and lists and maps of them
	}
	return fmt.Sprintf("sweep-%x", sha256.Sum256(text))[:len("sweep-")+digits]
}

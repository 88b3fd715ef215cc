// SPDX-License-Identifier: Apache-2.0

package receipt

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/cause"
	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/project"
	"github.com/ml-dev-env/ml-dev-env/internal/run"
)

// Keys of the ConfigMap in addition to the receipt's.
const (
	startKey    = "run.json"
	progressKey = "progress.json"
	entryPrefix = "step-"
	entrySuffix = ".json"

	verdictLabel = project.LabelPrefix + "verdict"
	// unfinished is the verdict label of a run without a receipt.
	unfinished = "Running"
)

// maxEntry bounds what one step writes, in bytes: the entries of all steps and the receipt share a ConfigMap.
const maxEntry = 15 << 10

// Start is what is known of a run when it starts.
type Start struct {
	Run         string    `json:"-"`
	Namespace   string    `json:"-"`
	RunUID      string    `json:"runUID"`
	Environment string    `json:"environment"`
	Schedule    string    `json:"schedule,omitempty"`
	User        string    `json:"user,omitempty"`
	Started     time.Time `json:"started,omitzero"`
	// Kept reports that a user trains in an environment that is kept: there is no PipelineRun, and the command of the user writes the receipt.
	Kept bool `json:"kept,omitempty"`
}

// Entry is what one step remembers of the run.
type Entry struct {
	RunUID  string      `json:"runUID"`
	Task    string      `json:"task"`
	Status  run.Status  `json:"status"`
	Reason  fail.Reason `json:"reason,omitempty"`
	Message string      `json:"message,omitempty"`
	Started time.Time   `json:"started,omitzero"`
	Ended   time.Time   `json:"ended,omitzero"`
	// Final reports that a retry of the step only repeats its failure.
	Final bool `json:"final,omitempty"`
	// What the step has learnt.
	Repository string              `json:"repository,omitempty"`
	Commit     string              `json:"commit,omitempty"`
	Tree       string              `json:"tree,omitempty"`
	Image      string              `json:"image,omitempty"`
	Mode       agent.Mode          `json:"mode,omitempty"`
	ModeReason string              `json:"modeReason,omitempty"`
	Storage    cluster.StorageMode `json:"storage,omitempty"`
	Constraint string              `json:"constraint,omitempty"`
	Metrics    json.RawMessage     `json:"metrics,omitempty"`
	Training   *Training           `json:"training,omitempty"`
	Record     *Record             `json:"record,omitempty"`
	Cause      *cause.Culprit      `json:"cause,omitempty"`
	// Attempt is the newest one of the training. Order has its nodes in the order of their ranks, and is empty if that is the order of
	// their numbers.
	Attempt int   `json:"attempt,omitempty"`
	Order   []int `json:"order,omitempty"`
	// Failed is the attempt before it, nil for none.
	Failed *agent.Attempt `json:"failed,omitempty"`
	// Nodes is how many nodes the environment has.
	Nodes int `json:"nodes,omitempty"`
	// Hanging are the ranks for which the others waited, if the reason is Hang and they are known.
	Hanging []int `json:"hanging,omitempty"`
	// Hang is the silence after which the training counted as hanging.
	Hang *agent.Hang `json:"hang,omitempty"`
	// GPUs are those of the environment.
	GPUs *GPUs `json:"gpus,omitempty"`
}

// Progress is how far a training is.
type Progress struct {
	// RunUID is the UID of the run.
	RunUID string `json:"runUID"`
	// At is when the training had come this far.
	At time.Time `json:"at"`
	// Step is how many optimiser steps are done.
	Step float64 `json:"step"`
	// Steps is the total number of steps, if the training measures it.
	Steps float64 `json:"steps,omitempty"`
	// Source is the framework that counts the steps of a training which does not measure itself.
	Source string `json:"source,omitempty"`
	// Loss is the last loss. It is left out if the training measures none, or if it was not finite.
	Loss *float64 `json:"loss,omitempty"`
	// NotFinite is the first step whose loss was NaN or infinite.
	NotFinite *float64 `json:"notFinite,omitempty"`
	// TokensPerSecond is the training's speed, if it counts tokens.
	TokensPerSecond float64 `json:"tokensPerSecond,omitempty"`
	// SamplesPerSecond is the training's speed, if it counts samples.
	SamplesPerSecond float64 `json:"samplesPerSecond,omitempty"`
	// SecondsLeft is an estimate of the time left.
	SecondsLeft float64 `json:"secondsLeft,omitempty"`
	// Checkpoint is the newest complete checkpoint that was found, a path on the workspace.
	Checkpoint string `json:"checkpoint,omitempty"`
}

// Journal is what a run's ConfigMap holds, from the first second of the run on.
type Journal struct {
	Start
	// Entries has the steps' entries, in the order in which the steps started.
	Entries []Entry
	// Progress is nil before the training writes metrics.
	Progress *Progress
	// Receipt is nil until the run has ended.
	Receipt *Receipt

	// version is the ConfigMap's resourceVersion.
	version string
}

// BeginJournal creates the ConfigMap of a run, unless another caller has. It replaces the ConfigMap of an earlier run of the same name.
func BeginJournal(ctx context.Context, client kubernetes.Interface, s Start) error {
	content, err := json.Marshal(s)
	if err != nil {
		return err
	}
	wanted := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: Name(s.Run), Namespace: s.Namespace, Labels: labelsOf(s.Environment, s.Schedule, unfinished)},
		Data:       map[string]string{startKey: string(content)},
	}
	if err := kube.Contend(func() error { return begin(ctx, client, wanted, s) }); err != nil {
		return kube.Problem(fmt.Errorf("beginning the receipt of %s/%s: %w", s.Namespace, s.Run, err))
	}
	return nil
}

// begin is one attempt. After AlreadyExists, Conflict or NotFound another one may succeed.
func begin(ctx context.Context, client kubernetes.Interface, wanted *corev1.ConfigMap, s Start) error {
	configs := client.CoreV1().ConfigMaps(wanted.Namespace)
	found, err := configs.Get(ctx, wanted.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		_, err = configs.Create(ctx, wanted, metav1.CreateOptions{FieldManager: kube.FieldManager})
		return err
	case err != nil, runUIDOf(found) == s.RunUID:
		return err
	}
	data := map[string]any{}
	for key := range found.Data {
		data[key] = nil
	}
	data[startKey] = wanted.Data[startKey]
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": found.ResourceVersion, "labels": wanted.Labels}, "data": data,
	})
	if err != nil {
		return err
	}
	_, err = configs.Patch(ctx, wanted.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: kube.FieldManager})
	return err
}

// beginningOf returns what a ConfigMap has of the start of its run, zero for nothing.
func beginningOf(config corev1.ConfigMap) (s Start) {
	_ = json.Unmarshal([]byte(config.Data[startKey]), &s)
	return s
}

// runUIDOf returns the UID of the run whose journal a ConfigMap is. Without notes of the run's steps the ConfigMap has only the receipt.
func runUIDOf(config *corev1.ConfigMap) string {
	var s Start
	if json.Unmarshal([]byte(config.Data[startKey]), &s) == nil && s.RunUID != "" {
		return s.RunUID
	}
	_ = json.Unmarshal([]byte(config.Data[key]), &s)
	return s.RunUID
}

// store is where a run's journal lies: a ConfigMap, or a folder of the user's own machine.
type store interface {
	// put replaces what has a name, and leaves the rest as it is.
	put(ctx context.Context, name string, content []byte) error
}

// Note writes the entry of a step, and replaces an earlier one.
func Note(ctx context.Context, client kubernetes.Interface, s Start, p Entry) error {
	return s.addEntry(ctx, configMap{client, s}, p)
}

// NoteProgress writes how far the training is.
func NoteProgress(ctx context.Context, client kubernetes.Interface, s Start, p Progress) error {
	return s.noteProgress(ctx, configMap{client, s}, p)
}

func (s Start) addEntry(ctx context.Context, in store, p Entry) error {
	p.RunUID = s.RunUID
	content, err := p.encode()
	if err != nil {
		return err
	}
	return in.put(ctx, entryPrefix+p.Task+entrySuffix, content)
}

func (s Start) noteProgress(ctx context.Context, in store, p Progress) error {
	p.RunUID = s.RunUID
	content, err := json.Marshal(p)
	if err != nil {
		return err
	}
	return in.put(ctx, progressKey, content)
}

// configMap is the store of a run on a cluster.
type configMap struct {
	client kubernetes.Interface
	Start
}

func (s configMap) put(ctx context.Context, name string, content []byte) error {
	patch, err := json.Marshal(map[string]any{"data": map[string]string{name: string(content)}})
	if err != nil {
		return err
	}
	configs, to := s.client.CoreV1().ConfigMaps(s.Namespace), metav1.PatchOptions{FieldManager: kube.FieldManager}
	set := func() error {
		_, err := configs.Patch(ctx, Name(s.Run), types.MergePatchType, patch, to)
		return err
	}
	if err = set(); apierrors.IsNotFound(err) && s.Environment != "" {
		if err = BeginJournal(ctx, s.client, s.Start); err == nil {
			err = set()
		}
	}
	if err != nil {
		return kube.Problem(fmt.Errorf("writing %s of receipt %s/%s: %w", name, s.Namespace, Name(s.Run), err))
	}
	return nil
}

// encode leaves out what matters least until the rest fits.
func (p Entry) encode() ([]byte, error) {
	shorten := []func(){
		func() {},
		func() { p.Message = humanize.Lines(p.Message, 2000) },
		func() { p.Cause = brief(p.Cause) },
		func() {
			if p.Training != nil {
				p.Training = &Training{Launcher: p.Training.Launcher, Nodes: p.Training.Nodes, RanksPerNode: p.Training.RanksPerNode}
			}
		},
		func() { p.Metrics, p.Order, p.Hanging, p.Failed = nil, nil, nil, nil },
		func() {
			p = Entry{
				RunUID: p.RunUID, Task: p.Task, Status: p.Status, Reason: p.Reason, Message: humanize.OneLine(p.Message, 500),
				Started: ofJSON(p.Started), Ended: ofJSON(p.Ended), Final: p.Final, Attempt: p.Attempt, Nodes: p.Nodes, Cause: brief(p.Cause),
				GPUs: p.GPUs, Hang: p.Hang,
			}
		},
	}
	var content []byte
	var err error
	for _, less := range shorten {
		less()
		if content, err = json.Marshal(p); err == nil && len(content) <= maxEntry {
			return content, nil
		}
	}
	return nil, fmt.Errorf("encoding the entry of %s: %d bytes, %w", p.Task, len(content), err)
}

// ReadJournal reads the journal of a run. Reason of one that is not valid: InvalidInput.
func ReadJournal(ctx context.Context, client kubernetes.Interface, namespace, name string) (Journal, error) {
	found, err := client.CoreV1().ConfigMaps(namespace).Get(ctx, Name(name), metav1.GetOptions{})
	if err != nil {
		return Journal{}, fmt.Errorf("getting the receipt of %s/%s: %w", namespace, name, err)
	}
	return parseJournal(found)
}

// ReadJournals returns the journals of all runs of the namespace. It skips invalid ones; its error names them.
func ReadJournals(ctx context.Context, client kubernetes.Interface, namespace string) ([]Journal, error) {
	return readJournals(ctx, client, namespace, Label+"=true")
}

// Unfinished returns the journals of the runs that have no receipt yet.
func Unfinished(ctx context.Context, client kubernetes.Interface, namespace string) ([]Journal, error) {
	return readJournals(ctx, client, namespace, Label+"=true,"+verdictLabel+"="+unfinished)
}

func readJournals(ctx context.Context, client kubernetes.Interface, namespace, selector string) (all []Journal, err error) {
	found, err := selected(ctx, client, namespace, selector)
	if err != nil {
		return nil, err
	}
	var problems []error
	for i := range found {
		m, err := parseJournal(&found[i])
		if err != nil {
			problems = append(problems, err)
			continue
		}
		all = append(all, m)
	}
	return all, errors.Join(problems...)
}

// parseJournal checks what it reads, because anyone who may write ConfigMaps may have written it.
func parseJournal(config *corev1.ConfigMap) (Journal, error) {
	m := Journal{version: config.ResourceVersion}
	if text, ok := config.Data[startKey]; ok {
		if err := json.Unmarshal([]byte(text), &m.Start); err != nil || !runUID.MatchString(m.RunUID) {
			return m, fail.Becausef(fail.InvalidInput, "reading %s of receipt %s/%s: not valid: %w", startKey, config.Namespace, config.Name, err)
		}
	}
	if config.Data[key] != "" {
		r, err := decode(config)
		switch {
		case err != nil:
			return m, err
		case m.RunUID == "", m.RunUID == r.RunUID:
			m.Receipt = &r
			m.RunUID, m.Environment, m.Schedule = r.RunUID, cmp.Or(m.Environment, r.Environment), cmp.Or(m.Schedule, r.Schedule)
			m.User = cmp.Or(m.User, r.User)
		}
	}
	m.Run, m.Namespace = strings.TrimSuffix(config.Name, suffix), config.Namespace
	if m.Started.IsZero() {
		m.Started = config.CreationTimestamp.UTC()
	}
	for _, name := range slices.Sorted(maps.Keys(config.Data)) {
		m.readEntry(name, config.Data[name])
	}
	slices.SortStableFunc(m.Entries, func(a, b Entry) int { return a.Started.Compare(b.Started) })
	return m, nil
}

// readEntry passes over what is not valid, or another run's.
func (m *Journal) readEntry(name, text string) {
	if name == progressKey {
		p := &Progress{}
		if json.Unmarshal([]byte(text), p) == nil && p.RunUID == m.RunUID {
			m.Progress = p
		}
		return
	}
	task, isPart := strings.CutPrefix(name, entryPrefix)
	var p Entry
	if !isPart || json.Unmarshal([]byte(text), &p) != nil || p.RunUID != m.RunUID {
		return
	}
	p.Task = strings.TrimSuffix(task, entrySuffix)
	m.Entries = append(m.Entries, p)
}

// EntryOf returns what the step of a task has noted, nil for nothing.
func (m Journal) EntryOf(task string) *Entry {
	if i := slices.IndexFunc(m.Entries, func(p Entry) bool { return p.Task == task }); i >= 0 {
		return &m.Entries[i]
	}
	return nil
}

// Record returns where the run's record lies, nil before the training has started.
func (m Journal) Record() *Record {
	for _, p := range m.Entries {
		if p.Record != nil {
			return p.Record
		}
	}
	return nil
}

// End returns the receipt of a run that has ended without a teardown, at a time and for a reason. The first failure of a step
// counts more.
func (m Journal) End(reason fail.Reason, message string, at time.Time) Receipt {
	return m.ToReceipt(m.Verdict(Seen{End: &End{Reason: reason, Message: message}}), at)
}

// Finish writes the receipt of a run that ended without a teardown, unless its ConfigMap has changed since it was read: a conflict is
// an error.
func (m Journal) Finish(ctx context.Context, client kubernetes.Interface, r Receipt) error {
	content, err := encode(r)
	if err != nil {
		return err
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": m.version, "labels": labelsOf(r.Environment, r.Schedule, r.Verdict)},
		"data":     map[string]string{key: string(content)},
	})
	if err != nil {
		return err
	}
	to := metav1.PatchOptions{FieldManager: kube.FieldManager}
	if _, err = client.CoreV1().ConfigMaps(m.Namespace).Patch(ctx, Name(m.Run), types.MergePatchType, patch, to); err != nil {
		return kube.Problem(fmt.Errorf("writing receipt %s/%s: %w", m.Namespace, Name(m.Run), err))
	}
	return nil
}

// Fold adds what the steps have noted and the receipt lacks. A later step knows more.
func (m Journal) Fold(r *Receipt) {
	phases, why := len(r.Phases) == 0, fail.Cancelled // why a step has not noted its end
	if r.Reason != "" && !slices.ContainsFunc(m.Entries, func(p Entry) bool { return p.Status == run.Failed }) {
		why = r.Reason
	}
	var all Entry
	for _, p := range m.Entries {
		if phases {
			r.Phases = append(r.Phases, p.phase(r.Ended, why))
		}
		all.fold(p)
	}
	r.Repository, r.Commit, r.Tree = cmp.Or(r.Repository, all.Repository), cmp.Or(r.Commit, all.Commit), cmp.Or(r.Tree, all.Tree)
	r.Image, r.Storage = cmp.Or(r.Image, all.Image), cmp.Or(r.Storage, all.Storage)
	r.Constraint = cmp.Or(r.Constraint, all.Constraint)
	if r.Mode == "" {
		r.Mode, r.ModeReason = all.Mode, all.ModeReason
	}
	r.Training, r.Record = cmp.Or(r.Training, all.Training), cmp.Or(r.Record, all.Record)
	r.User, r.GPUs, r.Hang = cmp.Or(r.User, m.User), cmp.Or(r.GPUs, all.GPUs), cmp.Or(r.Hang, all.Hang)
	if r.Verdict != Succeeded {
		r.Cause = cmp.Or(r.Cause, all.Cause)
	}
	if len(r.Metrics) == 0 {
		r.Metrics = all.Metrics
	}
	if m.Progress == nil {
		return
	}
	r.Checkpoint = cmp.Or(r.Checkpoint, m.Progress.Checkpoint)
	if len(r.Metrics) == 0 {
		r.Metrics = m.Progress.metrics()
	}
}

// fold takes over what a later step has learnt.
func (p *Entry) fold(later Entry) {
	p.Repository, p.Commit, p.Tree = cmp.Or(later.Repository, p.Repository), cmp.Or(later.Commit, p.Commit), cmp.Or(later.Tree, p.Tree)
	p.Image, p.Storage = cmp.Or(later.Image, p.Image), cmp.Or(later.Storage, p.Storage)
	p.Constraint = cmp.Or(later.Constraint, p.Constraint)
	if later.Mode != "" {
		p.Mode, p.ModeReason = later.Mode, cmp.Or(later.ModeReason, p.ModeReason)
	}
	p.Training, p.Record, p.Cause = cmp.Or(later.Training, p.Training), cmp.Or(later.Record, p.Record), cmp.Or(later.Cause, p.Cause)
	p.GPUs, p.Hang = cmp.Or(later.GPUs, p.GPUs), cmp.Or(later.Hang, p.Hang)
	if len(later.Metrics) > 0 {
		p.Metrics = later.Metrics
	}
}

// brief returns a cause without the traceback, and with the ends of long texts cut.
func brief(c *cause.Culprit) *cause.Culprit {
	if c == nil {
		return nil
	}
	short := &cause.Culprit{Rank: c.Rank, Node: c.Node, Exit: c.Exit}
	short.Exit.Error = humanize.OneLine(c.Exit.Error, 500)
	if p := c.Python; p != nil {
		short.Python = &agent.PythonError{
			Seen: ofJSON(p.Seen), Type: humanize.OneLine(p.Type, 200), Message: humanize.OneLine(p.Message, 500),
			File: humanize.OneLine(p.File, 200), Line: p.Line,
		}
	}
	return short
}

// PhaseOf returns a TaskRun as a phase.
func PhaseOf(task run.TaskRun) Phase {
	phase := Phase{
		Name: task.Task, Status: task.Status, Reason: task.Reason, Retries: task.Retries,
		Started: task.Started.UTC(), Ended: task.Ended.UTC(),
	}
	if !task.Started.IsZero() && !task.Ended.IsZero() {
		phase.Seconds = task.Ended.Sub(task.Started).Seconds()
	}
	return phase
}

// phase returns the entry as a phase. A step that did not note its end ended with its run.
func (p Entry) phase(ended time.Time, why fail.Reason) Phase {
	phase := Phase{Name: p.Task, Status: p.Status, Reason: p.Reason, Started: p.Started, Ended: p.Ended}
	if p.Status == run.Running && !ended.IsZero() {
		phase.Status, phase.Reason, phase.Ended = run.Failed, why, ended
	}
	if !phase.Ended.IsZero() {
		phase.Seconds = phase.Ended.Sub(phase.Started).Seconds()
	}
	return phase
}

// metrics returns the last values in the form of docs/reference/metrics.md.
func (p Progress) metrics() json.RawMessage {
	if p.At.IsZero() {
		return nil // there is only a checkpoint
	}
	values := map[string]any{"step": p.Step}
	if p.Source != "" {
		values["source"] = p.Source
	}
	if p.Steps > 0 {
		values["steps"] = p.Steps
	}
	if p.Loss != nil {
		values["loss"] = *p.Loss
	}
	text, _ := json.Marshal(values) // they were read as JSON
	return text
}

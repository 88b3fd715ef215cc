package objects

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
)

// Change says what becomes of a difference when the wanted object is applied.
type Change string

// The changes, from the easiest to the hardest.
const (
	// Live takes effect at once.
	Live Change = "live"
	// Recreate is accepted, and holds for a node only after its pod was deleted.
	Recreate Change = "recreate"
	// Immutable is refused: the StatefulSet must be deleted and made anew.
	Immutable Change = "immutable"
)

// Difference is one thing in which a live environment is not what is wanted.
type Difference struct {
	// Path in the StatefulSet, as in spec.replicas or
	// spec.template.spec.containers[train].env[NCCL_DEBUG].
	Path string
	// What is the same for people.
	What string
	// Old and New are the values, "none" for one that is not there.
	Old, New string
	Change   Change
}

// String is as in "image: a -> b".
func (d Difference) String() string { return fmt.Sprintf("%s: %s -> %s", d.What, d.Old, d.New) }

// Differences returns what applying want would change in live, in the order of
// the paths. Only what Build sets is compared: neither what the API server or
// others added, nor metadata and status.
func Differences(live, want *appsv1.StatefulSet) []Difference {
	c := comparison{}
	oldMode, newMode := storageMode(live), storageMode(want)
	oldSpec, newSpec := readable(live), readable(want)
	if oldMode != newMode {
		c.add("spec.volumeClaimTemplates", oldMode, newMode)
		dropClaims(oldSpec)
		dropClaims(newSpec)
	}
	c.compare("spec", oldSpec, newSpec)
	slices.SortStableFunc(c.found, func(a, b Difference) int { return strings.Compare(a.Path, b.Path) })
	return c.found
}

const none = "none"

type comparison struct{ found []Difference }

// compare goes through what is wanted; of keyed elements also through what is there.
func (c *comparison) compare(path string, live, want any) {
	switch want := want.(type) {
	case keyedList:
		live, _ := live.(keyedList)
		for _, key := range slices.Sorted(maps.Keys(union(live, want))) {
			old, isThere := live[key]
			wanted, isWanted := want[key]
			at := path + "[" + key + "]"
			switch {
			case isThere && isWanted:
				c.compare(at, old, wanted)
			case isThere:
				c.add(at, brief(old), none)
			default:
				c.add(at, none, brief(wanted))
			}
		}
	case map[string]any:
		live, _ := live.(map[string]any)
		for _, key := range slices.Sorted(maps.Keys(want)) {
			c.compare(path+"."+key, live[key], want[key])
		}
	default:
		c.add(path, brief(live), brief(want))
	}
}

func (c *comparison) add(path, live, want string) {
	what := describePath(path)
	// GPUs stand under requests and under limits.
	told := slices.ContainsFunc(c.found, func(d Difference) bool { return d.What == what })
	if live != want && !told {
		c.found = append(c.found, Difference{Path: path, What: what, Old: live, New: want, Change: changeOf(path)})
	}
}

func changeOf(path string) Change {
	switch {
	case strings.HasPrefix(path, "spec.template"):
		return Recreate
	case strings.HasPrefix(path, "spec.replicas"), strings.HasPrefix(path, "spec.updateStrategy"),
		strings.HasPrefix(path, "spec.persistentVolumeClaimRetentionPolicy"):
		return Live
	}
	return Immutable
}

func union(a, b keyedList) keyedList {
	all := maps.Clone(a)
	if all == nil {
		all = keyedList{}
	}
	maps.Copy(all, b)
	return all
}

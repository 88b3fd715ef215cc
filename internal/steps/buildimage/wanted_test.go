// SPDX-License-Identifier: Apache-2.0

package buildimage

import (
	"context"
	"strings"
	"testing"

	buildv1 "github.com/openshift/api/build/v1"
	buildfake "github.com/openshift/client-go/build/clientset/versioned/fake"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// crowd is several callers of one running build, with a server that ends a cancelled build, as OpenShift's controller does.
type crowd struct {
	*testing.T
	builds *buildfake.Clientset
	// before is called before the next write.
	before func()
}

func newCrowd(t *testing.T, starter string) *crowd {
	build := &buildv1.Build{ObjectMeta: metav1.ObjectMeta{Name: "b", Namespace: "ns", UID: "1"}}
	build.Status.Phase = buildv1.BuildPhaseRunning
	if starter != "" {
		build = startedBy(starter, build)
	}
	c := &crowd{T: t, builds: buildfake.NewClientset(build)}
	c.builds.PrependReactor("update", "builds", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if before := c.before; before != nil {
			c.before = nil
			before()
			return true, nil, apierrors.NewConflict(buildv1.Resource("builds"), "b", nil)
		}
		if build := action.(clienttesting.UpdateAction).GetObject().(*buildv1.Build); build.Status.Cancelled {
			build.Status.Phase = buildv1.BuildPhaseCancelled
		}
		return false, nil, nil
	})
	return c
}

// caller returns a step that knows the build.
func (c *crowd) caller(name string) *site {
	s := newSite(c.T)
	s.caller, s.holder, s.builds = name, "run "+name, c.builds.BuildV1()
	return s
}

// left writes that a caller has left, as leave does. It works in a reactor, where the fake is locked.
func (c *crowd) left(caller string) {
	tracker, resource := c.builds.Tracker(), buildv1.GroupVersion.WithResource("builds")
	object, err := tracker.Get(resource, "ns", "b")
	if err != nil {
		c.Fatal(err)
	}
	build := object.(*buildv1.Build).DeepCopy()
	build.Annotations[wantedPrefix+caller] = ""
	if err := tracker.Update(resource, build, "ns"); err != nil {
		c.Fatal(err)
	}
}

func (c *crowd) phase() buildv1.BuildPhase {
	c.Helper()
	build, err := c.builds.BuildV1().Builds("ns").Get(c.Context(), "b", metav1.GetOptions{})
	if err != nil {
		c.Fatal(err)
	}
	return build.Status.Phase
}

// follows has a caller wait for the build too.
func (c *crowd) follows(s *site) *site {
	c.Helper()
	if ok, err := s.markWaiting(c.Context(), "b"); !ok || err != nil {
		c.Fatalf("%s wants the build: %t, %v", s.caller, ok, err)
	}
	return s
}

func arrivedFolder() *sending {
	s := &sending{ended: make(chan struct{})}
	close(s.ended)
	return s
}

// TestBuildThatOnlyAFailedRunWants: preflight of the run that has started the build fails.
func TestBuildThatOnlyAFailedRunWants(t *testing.T) {
	t.Run("nobody else", func(t *testing.T) {
		c := newCrowd(t, "one")
		one := c.caller("one")
		one.notNeeded(t.Context(), "b")
		if c.phase() != buildv1.BuildPhaseCancelled || !strings.Contains(one.log.String(),
			"is cancelled, because no other run or user waits for it") {
			t.Errorf("the build is %s, log %s; want it cancelled", c.phase(), one.log)
		}
	})
	t.Run("another run", func(t *testing.T) {
		c := newCrowd(t, "one")
		one, two := c.caller("one"), c.follows(c.caller("two"))
		one.notNeeded(t.Context(), "b")
		if c.phase() != buildv1.BuildPhaseRunning || !strings.Contains(one.log.String(), "continues, because run two waits for it") {
			t.Errorf("the build is %s, log %s; want it to continue for run two", c.phase(), one.log)
		}
		two.notNeeded(t.Context(), "b")
		if c.phase() != buildv1.BuildPhaseCancelled {
			t.Errorf("after both runs have failed the build is %s, want it cancelled", c.phase())
		}
	})
	t.Run("the follower fails first", func(t *testing.T) {
		c := newCrowd(t, "one")
		c.follows(c.caller("two")).notNeeded(t.Context(), "b")
		if c.phase() != buildv1.BuildPhaseRunning {
			t.Errorf("the build of run one is %s, want it to continue", c.phase())
		}
	})
	t.Run("both at once", func(t *testing.T) {
		c := newCrowd(t, "one")
		one, two := c.caller("one"), c.follows(c.caller("two"))
		c.before = func() { c.left(two.caller) } // between the other's read and write
		one.notNeeded(t.Context(), "b")
		if c.phase() != buildv1.BuildPhaseCancelled {
			t.Errorf("the build is %s, want it cancelled", c.phase())
		}
	})
	t.Run("a build of another program", func(t *testing.T) {
		c := newCrowd(t, "")
		c.follows(c.caller("one")).notNeeded(t.Context(), "b")
		if c.phase() != buildv1.BuildPhaseRunning {
			t.Errorf("a build by oc start-build is %s, want it to continue", c.phase())
		}
	})
}

// TestInterruptedBuild: the build of a step that ends continues for others, unless its folder is still on the way.
func TestInterruptedBuild(t *testing.T) {
	ended, end := context.WithCancel(t.Context())
	end()
	c := newCrowd(t, "one")
	one, two := c.caller("one"), c.follows(c.caller("two"))
	if err := one.interrupted(ended, "b", arrivedFolder()); fail.ReasonOf(err) != fail.Cancelled || !strings.Contains(err.Error(),
		"continues, because run two waits for it") || c.phase() != buildv1.BuildPhaseRunning {
		t.Errorf("the starter: %v, the build is %s; want it to continue", err, c.phase())
	}
	if err := two.interrupted(ended, "b", nil); !strings.Contains(err.Error(), "build b is cancelled") ||
		c.phase() != buildv1.BuildPhaseCancelled {
		t.Errorf("the last one: %v, the build is %s; want it cancelled", err, c.phase())
	}
	c = newCrowd(t, "one")
	c.follows(c.caller("two"))
	if err := c.caller("one").interrupted(ended, "b", &sending{ended: make(chan struct{})}); !strings.Contains(err.Error(),
		"build b is cancelled") {
		t.Errorf("while the folder is sent: %v, want the build cancelled", err)
	}
}

// TestCancelledBuildIsNotJoined: a build that was cancelled meanwhile is not followed.
func TestCancelledBuildIsNotJoined(t *testing.T) {
	c := newCrowd(t, "one")
	if err := c.caller("one").cancelNow(t.Context(), "b"); err != nil {
		t.Fatal(err)
	}
	if ok, err := c.caller("two").markWaiting(t.Context(), "b"); ok || err != nil {
		t.Errorf("joining: %t, %v; want false", ok, err)
	}
	if ok, err := c.caller("two").markWaiting(t.Context(), "gone"); ok || err != nil {
		t.Errorf("joining a build that is gone: %t, %v; want false", ok, err)
	}
}

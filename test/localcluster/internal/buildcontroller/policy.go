// SPDX-License-Identifier: Apache-2.0

package buildcontroller

import (
	"slices"
	"sort"
	"strconv"

	buildv1 "github.com/openshift/api/build/v1"
)

// configOf returns the name of the BuildConfig that the build was created from, or "".
func configOf(build *buildv1.Build) string {
	if name := build.Annotations[buildv1.BuildConfigAnnotation]; name != "" {
		return name
	}
	return build.Labels[buildv1.BuildConfigLabel]
}

func numberOf(build *buildv1.Build) int64 {
	n, err := strconv.ParseInt(build.Annotations[buildv1.BuildNumberAnnotation], 10, 64)
	if err != nil {
		return 0
	}
	return n
}

func ended(build *buildv1.Build) bool {
	switch build.Status.Phase {
	case buildv1.BuildPhaseComplete, buildv1.BuildPhaseFailed, buildv1.BuildPhaseError, buildv1.BuildPhaseCancelled:
		return true
	}
	return false
}

// turn applies the run policy to a new build. It returns whether the build may run now, and which builds it supersedes.
// others are the builds of its BuildConfig.
func turn(build *buildv1.Build, others []buildv1.Build) (run bool, superseded []string) {
	policy := buildv1.BuildRunPolicy(build.Labels[buildv1.BuildRunPolicyLabel])
	if configOf(build) == "" {
		return true, nil
	}
	if policy == buildv1.BuildRunPolicyParallel {
		// The build waits for running builds with another policy.
		return !slices.ContainsFunc(others, func(other buildv1.Build) bool {
			begun := other.Status.Phase == buildv1.BuildPhasePending || other.Status.Phase == buildv1.BuildPhaseRunning
			return begun && other.Labels[buildv1.BuildRunPolicyLabel] != string(buildv1.BuildRunPolicyParallel)
		}), nil
	}
	run = true
	for i := range others {
		other := &others[i]
		if other.Name == build.Name || ended(other) {
			continue
		}
		switch {
		case other.Status.Phase != buildv1.BuildPhaseNew:
			run = false
		case numberOf(other) < numberOf(build):
			if policy == buildv1.BuildRunPolicySerialLatestOnly {
				superseded = append(superseded, other.Name)
			} else {
				run = false
			}
		case policy == buildv1.BuildRunPolicySerialLatestOnly:
			run = false
		}
	}
	return run, superseded
}

// surplus returns the names of ended builds beyond the BuildConfig's limits, the oldest first. One limit counts the
// complete builds, the other all other ended builds.
func surplus(config *buildv1.BuildConfig, builds []buildv1.Build) []string {
	var complete, failed []*buildv1.Build
	for i := range builds {
		switch {
		case !ended(&builds[i]):
		case builds[i].Status.Phase == buildv1.BuildPhaseComplete:
			complete = append(complete, &builds[i])
		default:
			failed = append(failed, &builds[i])
		}
	}
	beyond := func(list []*buildv1.Build, limit *int32) []string {
		if limit == nil || len(list) <= int(*limit) {
			return nil
		}
		sort.Slice(list, func(i, j int) bool {
			a, b := list[i].CreationTimestamp, list[j].CreationTimestamp
			if a.Equal(&b) {
				return numberOf(list[i]) < numberOf(list[j])
			}
			return a.Before(&b)
		})
		var names []string
		for _, b := range list[:len(list)-int(*limit)] {
			names = append(names, b.Name)
		}
		return names
	}
	return append(beyond(complete, config.Spec.SuccessfulBuildsHistoryLimit), beyond(failed, config.Spec.FailedBuildsHistoryLimit)...)
}

// SPDX-License-Identifier: Apache-2.0

package buildapi

import (
	"fmt"
	"net/url"
	"reflect"
	"strconv"
	"strings"
	"time"

	buildv1 "github.com/openshift/api/build/v1"
	imagev1 "github.com/openshift/api/image/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// publicScheme has the types in the versions that clients use.
func publicScheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	for _, install := range []func(*runtime.Scheme) error{buildv1.Install, imagev1.Install} {
		if err := install(scheme); err != nil {
			return nil, err
		}
	}
	return scheme, nil
}

// newScheme returns the scheme of the server. Each type has one version, which is also its internal version, so that no
// conversion is needed.
func newScheme() (*runtime.Scheme, error) {
	scheme, err := publicScheme()
	if err != nil {
		return nil, err
	}
	core := schema.GroupVersion{Version: "v1"}
	metav1.AddToGroupVersion(scheme, core)
	scheme.AddUnversionedTypes(core, &metav1.Status{}, &metav1.APIVersions{}, &metav1.APIGroupList{}, &metav1.APIGroup{},
		&metav1.APIResourceList{})
	for _, version := range []schema.GroupVersion{buildv1.GroupVersion, imagev1.GroupVersion} {
		internal := schema.GroupVersion{Group: version.Group, Version: runtime.APIVersionInternal}
		for kind, t := range scheme.KnownTypes(version) {
			if strings.HasPrefix(t.PkgPath(), "github.com/openshift/api/") {
				scheme.AddKnownTypeWithName(internal.WithKind(kind), reflect.New(t).Interface().(runtime.Object))
			}
		}
	}
	if err := scheme.SetVersionPriority(buildv1.GroupVersion); err != nil {
		return nil, err
	}
	if err := scheme.SetVersionPriority(imagev1.GroupVersion); err != nil {
		return nil, err
	}
	addDefaults(scheme)
	for _, add := range []func(*runtime.Scheme) error{addQueries, addFieldLabels} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	return scheme, nil
}

func addFieldLabels(scheme *runtime.Scheme) error {
	return scheme.AddFieldLabelConversionFunc(buildv1.GroupVersion.WithKind("Build"), func(label, value string) (string, string, error) {
		switch label {
		case "metadata.name", "metadata.namespace", "status", "podName":
			return label, value, nil
		}
		return "", "", fmt.Errorf("field label not supported: %s", label)
	})
}

// addQueries reads the query parameters of a log and of a binary build.
func addQueries(scheme *runtime.Scheme) error {
	err := scheme.AddConversionFunc((*url.Values)(nil), (*buildv1.BuildLogOptions)(nil), func(from, to any, _ conversion.Scope) error {
		return readLogOptions(*from.(*url.Values), to.(*buildv1.BuildLogOptions))
	})
	if err != nil {
		return err
	}
	return scheme.AddConversionFunc((*url.Values)(nil), (*buildv1.BinaryBuildRequestOptions)(nil),
		func(from, to any, _ conversion.Scope) error {
			query, options := *from.(*url.Values), to.(*buildv1.BinaryBuildRequestOptions)
			options.AsFile, options.Commit = query.Get("asFile"), query.Get("revision.commit")
			return nil
		})
}

func readLogOptions(query url.Values, options *buildv1.BuildLogOptions) error {
	for name, target := range map[string]*bool{
		"follow": &options.Follow, "previous": &options.Previous, "timestamps": &options.Timestamps,
		"nowait": &options.NoWait, "insecureSkipTLSVerifyBackend": &options.InsecureSkipTLSVerifyBackend,
	} {
		// As everywhere in the API, a parameter without a value is true, and so is every value except false and 0.
		if values, given := query[name]; given {
			*target = len(values) == 0 || (values[0] != "false" && values[0] != "0")
		}
	}
	for name, target := range map[string]**int64{
		"sinceSeconds": &options.SinceSeconds, "tailLines": &options.TailLines,
		"limitBytes": &options.LimitBytes, "version": &options.Version,
	} {
		if !query.Has(name) {
			continue
		}
		n, err := strconv.ParseInt(query.Get(name), 10, 64)
		if err != nil {
			return fmt.Errorf("reading the query parameter %s: %w", name, err)
		}
		*target = &n
	}
	if since := query.Get("sinceTime"); since != "" {
		t, err := time.Parse(time.RFC3339, since)
		if err != nil {
			return fmt.Errorf("reading the query parameter sinceTime: %w", err)
		}
		options.SinceTime = &metav1.Time{Time: t}
	}
	options.Container = query.Get("container")
	return nil
}

// SPDX-License-Identifier: Apache-2.0

package scc

import (
	"encoding/json"
	"fmt"
	"slices"

	securityv1 "github.com/openshift/api/security/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func checkVolumes(c *securityv1.SecurityContextConstraints, volumes []corev1.Volume) (errs field.ErrorList) {
	if slices.Contains(c.Volumes, securityv1.FSTypeAll) {
		return nil
	}
	for i, v := range volumes {
		kind := volumeKind(v.VolumeSource)
		switch {
		case slices.Contains(c.Volumes, kind):
		case kind == securityv1.FSProjected && slices.Contains(c.Volumes, securityv1.FSTypeSecret) && onlyToken(v.Projected):
		default:
			// OpenShift names no constraint here.
			errs = append(errs, field.Invalid(field.NewPath("spec", "volumes").Index(i), string(kind),
				fmt.Sprintf("%s volumes are not allowed to be used", kind)))
		}
	}
	return errs
}

// volumeKind returns the name of a volume's source in constraints: the name of its field, with three exceptions.
func volumeKind(source corev1.VolumeSource) securityv1.FSType {
	content, err := json.Marshal(source)
	if err != nil {
		return ""
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(content, &fields); err != nil {
		return ""
	}
	for name := range fields { // fields has one entry
		switch name {
		case "cephfs":
			return securityv1.FSTypeCephFS
		case "vsphereVolume":
			return securityv1.FSTypeVsphereVolume
		case "storageos":
			return securityv1.FSStorageOS
		}
		return securityv1.FSType(name)
	}
	return ""
}

// onlyToken reports whether a volume contains no more than the service account's files that every pod has.
func onlyToken(p *corev1.ProjectedVolumeSource) bool {
	for _, source := range p.Sources {
		isToken := source.ServiceAccountToken != nil
		isCA := source.ConfigMap != nil && (source.ConfigMap.Name == "kube-root-ca.crt" || source.ConfigMap.Name == "openshift-service-ca.crt")
		isNamespace := source.DownwardAPI != nil && len(source.DownwardAPI.Items) == 1 && source.DownwardAPI.Items[0].Path == "namespace"
		if !isToken && !isCA && !isNamespace {
			return false
		}
	}
	return true
}

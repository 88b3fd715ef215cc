// SPDX-License-Identifier: Apache-2.0

package buildimage

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	buildv1 "github.com/openshift/api/build/v1"
	imagev1 "github.com/openshift/api/image/v1"
	imageclient "github.com/openshift/client-go/image/clientset/versioned/typed/image/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// importTime is how long the API server may take to read a base from its registry.
const importTime = 20 * time.Second

// baseDigest finds the digest of a base in the same way on a laptop and in the cluster: the API server asks the registry, with the
// pull secrets of the namespace. Only where it cannot, this program asks the registry, with the login that it has.
func (b *builder) baseDigest(ctx context.Context, base string) (string, error) {
	if strings.Contains(base, "@") {
		return b.registry.digest(ctx, base)
	}
	digest, imported := importedDigest(ctx, b.images, b.namespace, base)
	if imported == nil {
		return digest, nil
	}
	digest, err := b.registry.digest(ctx, base)
	if err != nil {
		return "", fmt.Errorf("%w; by the API server: %w", err, imported)
	}
	return digest, nil
}

// CannotImport returns why the API server cannot read an image from its registry, with the pull secrets of the namespace; nil if it can.
func CannotImport(ctx context.Context, images imageclient.ImageV1Interface, namespace, image string) error {
	_, err := importedDigest(ctx, images, namespace, image)
	return err
}

// importedDigest returns the digest that the API server knows of an image stream's tag, or gets by an import that changes nothing.
func importedDigest(ctx context.Context, images imageclient.ImageV1Interface, namespace, base string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, importTime)
	defer cancel()
	if from, _, ok := kube.InternalImage(base); ok {
		name := base[strings.LastIndex(base, "/")+1:]
		if !strings.Contains(name, ":") {
			name += ":latest"
		}
		tag, err := images.ImageStreamTags(from).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		return tag.Image.Name, nil
	}
	asked := &imagev1.ImageStreamImport{
		ObjectMeta: metav1.ObjectMeta{Name: StreamName, Namespace: namespace},
		Spec: imagev1.ImageStreamImportSpec{Images: []imagev1.ImageImportSpec{{
			From: corev1.ObjectReference{Kind: "DockerImage", Name: base},
			// The digest of a list of platforms stays the list's own, as a registry answers it.
			ImportPolicy: imagev1.TagImportPolicy{ImportMode: imagev1.ImportModePreserveOriginal},
		}}},
	}
	answer, err := images.ImageStreamImports(namespace).Create(ctx, asked, metav1.CreateOptions{})
	switch {
	case err != nil:
		return "", err
	case answer == nil || len(answer.Status.Images) == 0:
		return "", errors.New("its answer has no image")
	}
	found := answer.Status.Images[0]
	if found.Image == nil || found.Image.Name == "" {
		return "", errors.New(found.Status.Message)
	}
	return found.Image.Name, nil
}

// made are the inputs that an image, a build or a claim was made from, by its labels.
type made struct {
	Inputs       string `json:"inputs"`
	WithoutBases string `json:"withoutBases,omitempty"`
	// Bases is basesText.
	Bases string `json:"bases,omitempty"`
}

func (in inputs) made() made { return made{in.fingerprint(), in.withoutBases(), in.basesText()} }

func madeOf(labels map[string]string) made {
	return made{labels[inputsLabel], labels[inputsWithoutBasesLabel], labels[baseDigestsLabel]}
}

// madeFor returns the inputs of a build or BuildConfig, empty if it is not ml-dev-env's.
func madeFor(output buildv1.BuildOutput) made {
	labels := map[string]string{}
	for _, label := range output.ImageLabels {
		labels[label.Name] = label.Value
	}
	return madeOf(labels)
}

// unknownBases returns the bases of which one side does not know the digest, if all else is the same. same is true for equal inputs, too.
func (in inputs) unknownBases(m made) (unknown []string, same bool) {
	if m.Inputs == in.fingerprint() {
		return nil, true
	}
	if m.WithoutBases == "" || m.WithoutBases != in.withoutBases() {
		return nil, false
	}
	recorded := map[string]string{}
	for text := range strings.FieldsSeq(m.Bases) {
		base, digest, _ := strings.Cut(text, "@")
		recorded[base] = digest
	}
	for _, base := range in.sortedBases() {
		plain, _, _ := strings.Cut(base, "@")
		mine, theirs := in.Bases[base], recorded[plain]
		switch {
		case mine == "" || theirs == "":
			unknown = append(unknown, base)
		case mine != theirs:
			return nil, false
		}
	}
	return unknown, len(unknown) > 0
}

// buildsTheSame reports whether a build or claim with these inputs gives the image that this step wants.
func (in inputs) buildsTheSame(m made) bool {
	_, same := in.unknownBases(m)
	return same
}

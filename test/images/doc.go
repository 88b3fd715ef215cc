// SPDX-License-Identifier: Apache-2.0

// Package images tests the flavours of tasks/mlenv-build-image as far as that is possible without their base
// images.
package images

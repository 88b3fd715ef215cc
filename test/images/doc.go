// SPDX-License-Identifier: Apache-2.0

// Package images tests the flavours below images/ as far as that is possible without their base
// images.
package images

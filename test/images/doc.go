// Package images tests the flavours below images/ as far as that is possible
// where their base images cannot be pulled.
package images

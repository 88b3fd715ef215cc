// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package claimfile

import "os"

func take(file *os.File, size int) error { return writeRoom(file, size) }

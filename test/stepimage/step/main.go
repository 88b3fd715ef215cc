// SPDX-License-Identifier: Apache-2.0

// Command step is a Tekton step for the end-to-end tests: it prints a text, shows the user that it
// runs as, and can fail.
package main

import (
	"fmt"
	"os"
	"strings"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "fail" {
		fmt.Println("failing as told")
		os.Exit(1)
	}
	fmt.Printf("%s uid=%d gid=%d\n", strings.Join(os.Args[1:], " "), os.Getuid(), os.Getgid())
}

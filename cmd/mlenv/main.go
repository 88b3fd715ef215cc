// Command mlenv is ml-dev-env's command line for people.
package main

import (
	"os"

	"github.com/ml-dev-env/ml-dev-env/internal/mlenv"
)

func main() { os.Exit(mlenv.Main(os.Args[1:], os.Stdout, os.Stderr)) }

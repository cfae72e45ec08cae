// Command caisson runs code that nobody trusts. The same binary is also every
// child that it starts: argv[0] says which, and is looked at first.
package main

import (
	"fmt"
	"os"
	"time"

	"caisson.dev/caisson/internal/cli"
	"caisson.dev/caisson/internal/host"
	"caisson.dev/caisson/internal/reexec"
)

func main() {
	began := time.Now()
	reexec.Dispatch()
	// What the caller had open beside stdio reaches none of our children.
	if err := host.SealDescriptors(); err != nil {
		fmt.Fprintln(os.Stderr, "caisson: error:", err)
		os.Exit(125)
	}
	os.Exit(cli.Main(os.Args[1:], began))
}

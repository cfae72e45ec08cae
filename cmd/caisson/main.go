// Command caisson runs code that nobody trusts. The same binary is also every
// child that it starts: argv[0] says which, and is looked at first.
package main

import (
	"os"
	"time"

	"caisson.dev/caisson/internal/cli"
	"caisson.dev/caisson/internal/reexec"
)

func main() {
	began := time.Now()
	reexec.Dispatch()
	os.Exit(cli.Main(os.Args[1:], began))
}

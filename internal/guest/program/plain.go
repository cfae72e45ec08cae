//go:build !release

package program

import "embed"

//go:embed all:bin
var files embed.FS

func read() ([]byte, error) { return files.ReadFile("bin/caisson-guest") }

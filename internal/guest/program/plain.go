//go:build !release

package program

import "embed"

//go:embed all:bin
var files embed.FS

func read() (program, digest []byte, err error) {
	if program, err = files.ReadFile("bin/caisson-guest"); err != nil {
		return nil, nil, err
	}
	digest, err = files.ReadFile("bin/caisson-guest.sha256")
	return program, digest, err
}

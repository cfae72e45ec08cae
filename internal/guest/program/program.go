// Package program holds the guest program, built for this architecture and
// embedded by the release build. A plain `go build` embeds a directory that
// may hold only a placeholder, so that the module builds everywhere; Binary
// then says what to do.
package program

import (
	"errors"
	"io/fs"

	"caisson.dev/caisson/api"
)

// Binary returns the guest program, a static executable.
func Binary() ([]byte, error) {
	b, err := read()
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &api.Error{
			Code:    "no_guest_program",
			Message: "this caisson was built without its guest program",
			Hint:    "build it with `make build`, which embeds the program",
			Err:     err,
		}
	}
	return b, err
}

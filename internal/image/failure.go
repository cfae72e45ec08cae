package image

import (
	"errors"
	"fmt"
	"syscall"
)

// failure says which kind of refusal an error is. It crosses from a child to
// the parent as one byte, and picks the code and the hint that users see.
type failure uint8

const (
	failInternal  failure = iota // a fault of ours, or the child died
	failArchive                  // the archive breaks a rule
	failLimit                    // over a cap
	failEmpty                    // nothing in it
	failDigest                   // content is not what its digest says
	failPlatform                 // not for this machine
	failFormat                   // not an image that we read
	failNotFound                 // no such image, tag or blob
	failAuth                     // the registry wants credentials
	failRefused                  // an address that we do not dial
	failNetwork                  // the registry cannot be reached or misbehaves
	failNoSpace                  // disk full
	failSource                   // the other side of the blob pipe failed; it says why
	failUnchanged                // the source is what the caller has already
	failChanged                  // the source changed while it was read
	failCutOff                   // the stream ended too early; its sender may know why
	failEnd                      // first value that means nothing
)

type codedError struct {
	code failure
	err  error
}

func (e *codedError) Error() string { return e.err.Error() }
func (e *codedError) Unwrap() error { return e.err }

// failf makes an error with a code.
func failf(code failure, format string, args ...any) error {
	return &codedError{code, fmt.Errorf(format, args...)}
}

// failureOf finds the code in err's chain.
func failureOf(err error) failure {
	if e, ok := errors.AsType[*codedError](err); ok {
		return e.code
	}
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return failNoSpace
	}
	return failInternal
}

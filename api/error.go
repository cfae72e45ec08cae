// Package api holds the types that cross a border of Caisson: results, limits
// and errors. It has no behaviour beyond validation and nothing mutable.
package api

import "errors"

// Error is what a user sees: one line that says what is wrong, one that says
// what to do. Code is stable and for programs.
type Error struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"`
	Err     error  `json:"-"` // cause, for errors.Is
}

func (e *Error) Error() string { return e.Message }

func (e *Error) Unwrap() error { return e.Err }

// Hint returns the hint of the first Error in err's chain, or "".
func Hint(err error) string {
	var e *Error
	if errors.As(err, &e) {
		return e.Hint
	}
	return ""
}

// Code returns the code of the first Error in err's chain, or "internal".
func Code(err error) string {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return "internal"
}

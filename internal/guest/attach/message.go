// Package attach is the unprivileged child that speaks to one guest (I15). It
// holds the connection into the sandbox and the caller's stdio, decodes what
// the guest sends, and tells its parent about it in messages of one small
// fixed size. A guest that breaks its decoder has broken a process without
// files, network, identity or privilege.
package attach

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
)

// Kind is what a message is about. The zero value is invalid.
type Kind uint32

const (
	// From the parent.
	Connect  Kind = iota + 1 // carries the guest connection as a descriptor
	Signal                   // Num: signal for the process group
	Resize                   // A: columns, B: rows
	Ping                     // asks for Pong, which needs the guest's answer
	KillBig                  // kill the largest process of the guest
	Stop                     // kill every process of the guest; answered by Stopped
	Artifact                 // A: index; stream it on the artifact pipe

	// From the child.
	Started     // A: pid inside
	Ended       // Num: exit code, or A: signal; B, C: bytes written to stdout, stderr
	Pong        //
	Killed      // Num: 1 if a process was killed; A: its pid inside, B: resident bytes, Text: name
	Stopped     // Text: error, empty if none
	Closed      // our output cannot be written; Text: why, empty if its reader went away
	ArtifactEnd // A: index; Text: error, empty if none
	Failed      // Num: FailCode; Text: what went wrong
)

// Failure codes of Failed.
const (
	FailInternal int32 = iota
	FailStart          // the program could not be started; Text says why
	FailGuest          // the guest program went away or broke the protocol
)

// Message is what parent and child tell each other. Its size on the wire is
// fixed; Text is cut to fit.
type Message struct {
	Kind    Kind
	Num     int32
	A, B, C int64
	Text    string
}

// Size of a message on the wire, in bytes.
const (
	headSize = 4 + 4 + 3*8
	textSize = 224
	Size     = headSize + textSize
)

// Encode returns the wire form of m.
func (m Message) Encode() []byte {
	b := make([]byte, Size)
	binary.LittleEndian.PutUint32(b[0:], uint32(m.Kind))
	binary.LittleEndian.PutUint32(b[4:], uint32(m.Num))
	binary.LittleEndian.PutUint64(b[8:], uint64(m.A))
	binary.LittleEndian.PutUint64(b[16:], uint64(m.B))
	binary.LittleEndian.PutUint64(b[24:], uint64(m.C))
	copy(b[headSize:], m.Text)
	return b
}

// Decode reads a message. The text is the guest's in some kinds, so that what
// is not printable is replaced: it ends up on terminals and in logs.
func Decode(b []byte) (Message, error) {
	if len(b) != Size {
		return Message{}, fmt.Errorf("cannot decode message: %d bytes instead of %d", len(b), Size)
	}
	m := Message{
		Kind: Kind(binary.LittleEndian.Uint32(b[0:])),
		Num:  int32(binary.LittleEndian.Uint32(b[4:])),
		A:    int64(binary.LittleEndian.Uint64(b[8:])),
		B:    int64(binary.LittleEndian.Uint64(b[16:])),
		C:    int64(binary.LittleEndian.Uint64(b[24:])),
		Text: printable(strings.TrimRight(string(b[headSize:]), "\x00")),
	}
	if m.Kind == 0 || m.Kind > Failed {
		return Message{}, errors.New("cannot decode message: unknown kind")
	}
	return m, nil
}

// printable keeps ASCII that shows itself and replaces the rest.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, s)
}

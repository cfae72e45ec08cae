package attach

import (
	"errors"
	"io"
	"syscall"
)

// output passes on the first max bytes of a stream and counts all of them, so
// that a flood costs the program its own time and nobody any memory.
type output struct {
	w     io.Writer
	max   int64
	bytes int64 // written by the guest
	gone  bool  // the reader went away; what follows is only counted
}

// write returns false once, when the reader of w turns out to be gone.
func (o *output) write(p []byte) (ok bool) {
	o.bytes += int64(len(p))
	room := o.max - (o.bytes - int64(len(p)))
	if o.gone || room <= 0 {
		return true
	}
	_, err := o.w.Write(p[:min(int64(len(p)), room)])
	if err == nil {
		return true
	}
	o.gone = true
	return !errors.Is(err, syscall.EPIPE)
}

package attach

import "io"

// output passes on the first max bytes of a stream and counts all of them, so
// that a flood costs the program its own time and nobody any memory.
type output struct {
	w     io.Writer
	max   int64
	bytes int64 // written by the guest
	gone  bool  // w failed; what follows is only counted
}

// write returns an error once, when w cannot take what it should.
func (o *output) write(p []byte) error {
	o.bytes += int64(len(p))
	room := o.max - (o.bytes - int64(len(p)))
	if o.gone || room <= 0 {
		return nil
	}
	_, err := o.w.Write(p[:min(int64(len(p)), room)])
	o.gone = err != nil
	return err
}

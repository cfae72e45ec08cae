package attach

import (
	"bytes"
	"errors"
	"io"
	"os"
	"syscall"
	"testing"
)

func TestI5_OutputKeepsTheFirstBytesAndCountsTheRest(t *testing.T) {
	for _, tc := range []struct {
		max    int64
		writes []string
		kept   string
		bytes  int64
	}{
		{0, []string{"abc"}, "", 3},
		{2, []string{"abc", "d"}, "ab", 4},
		{3, []string{"abc", "d"}, "abc", 4},
		{10, []string{"a", "", "bc"}, "abc", 3},
	} {
		var b bytes.Buffer
		o := output{w: &b, max: tc.max}
		for _, w := range tc.writes {
			if err := o.write([]byte(w)); err != nil {
				t.Errorf("max %d: %v", tc.max, err)
			}
		}
		if b.String() != tc.kept || o.bytes != tc.bytes {
			t.Errorf("max %d: kept %q of %d bytes, want %q of %d", tc.max, b.String(), o.bytes, tc.kept, tc.bytes)
		}
	}
}

func TestOutputReportsAGoneReaderOnce(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	defer w.Close()
	o := output{w: io.Writer(w), max: 100}
	if err := o.write([]byte("x")); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("a write to a closed pipe: %v", err)
	}
	if err := o.write([]byte("y")); err != nil || o.bytes != 2 {
		t.Errorf("after that: %v, bytes %d, want counting to go on in silence", err, o.bytes)
	}
}

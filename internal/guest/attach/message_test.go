package attach

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestMessageRoundTrip(t *testing.T) {
	in := Message{Kind: Killed, Num: -3, A: 1, B: -1, C: 1 << 62, Text: "python3"}
	out, err := Decode(in.Encode())
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(in, out); d != "" {
		t.Error(d)
	}
}

// A name chosen by a guest must not reach a terminal as a control sequence.
func TestMessageTextIsInert(t *testing.T) {
	m, err := Decode(Message{Kind: Killed, Text: "\x1b[2Jx\n\u202e" + strings.Repeat("y", 500)}.Encode())
	if err != nil {
		t.Fatal(err)
	}
	if strings.ContainsFunc(m.Text, func(r rune) bool { return r < ' ' || r > '~' }) {
		t.Errorf("text %q has control characters", m.Text)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(Message{Kind: Ended}.Encode())
	f.Add([]byte("short"))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := Decode(b)
		if err != nil {
			if m != (Message{}) {
				t.Errorf("error with a message: %+v", m)
			}
			return
		}
		again, err := Decode(m.Encode())
		if err != nil || again != m {
			t.Errorf("decode(encode(m)) = %+v, %v; m = %+v", again, err, m)
		}
	})
}

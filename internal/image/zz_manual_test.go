package image

import (
	"fmt"
	"os"
	"runtime"
	"testing"
)

func TestManual(t *testing.T) {
	in := os.Getenv("MANUAL_TAR")
	if in == "" {
		t.Skip()
	}
	f, err := os.Open(in)
	if err != nil {
		t.Fatal(err)
	}
	spool, _ := os.Create(os.Getenv("MANUAL_OUT") + ".spool")
	defer os.Remove(spool.Name())
	out, _ := os.Create(os.Getenv("MANUAL_OUT"))
	u := newUnpacker(Limits{}.withDefaults(), spool)
	if err := u.apply(f, false); err != nil {
		t.Fatal(err)
	}
	n, err := u.write(out, func(int64, int64) {})
	if err != nil {
		t.Fatal(err)
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	fmt.Println(n, u.t.entries, u.t.dropped, "heap sys", m.HeapSys>>20)
}

package main

import (
	"encoding/binary"
	"slices"
	"testing"
)

func dirent(name string, size int) []byte {
	b := make([]byte, size)
	binary.NativeEndian.PutUint16(b[16:], uint16(size))
	copy(b[19:], name)
	return b
}

func TestEachPidTakesOnlyNumbers(t *testing.T) {
	b := slices.Concat(dirent("12", 24), dirent("self", 24), dirent("7x", 24), dirent("345", 32), dirent("", 24), dirent("99999999999", 40))
	var got []int
	eachPid(b, func(pid int) { got = append(got, pid) })
	if !slices.Equal(got, []int{12, 345}) {
		t.Errorf("pids %v", got)
	}
}

func FuzzProcRecords(f *testing.F) {
	f.Add(dirent("12", 24), []byte("318901 5243 0 0 0 0 0"))
	f.Add([]byte{0}, []byte("1"))
	f.Fuzz(func(t *testing.T, dirents, statm []byte) {
		eachPid(dirents, func(pid int) {
			if pid <= 0 {
				t.Errorf("pid %d", pid)
			}
		})
		residentPages(statm)
		if s := trimLine(statm); len(s) > 15 {
			t.Errorf("comm %q", s)
		}
		parseInnerPid(statm)
	})
}

func TestResidentPages(t *testing.T) {
	for s, want := range map[string]int64{"318901 5243 0 0": 5243, "1": 0, "": 0, "1 ": 0, "1 x": 0} {
		if got := residentPages([]byte(s)); got != want {
			t.Errorf("residentPages(%q) = %d", s, got)
		}
	}
}

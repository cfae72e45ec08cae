package attach

import (
	"encoding/json"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// Task is what the child is to do: start one process in the guest and carry
// its streams. It comes from the parent, in memory, never by argument.
type Task struct {
	Token   string
	Cmd     string
	Args    []string
	Env     map[string]string
	Cwd     string
	User    string
	TTY     bool
	Cols    uint32
	Rows    uint32
	Stdin   bool  // copy our stdin to the process; otherwise it reads /dev/null
	Output  int64 // bytes of each stream that are passed on; the rest is counted
	Files   []File
	Collect []string // artifact paths inside, in the order of Artifact messages
}

// File is written into the guest before the process starts.
type File struct {
	Path string
	Data []byte
}

// maxTask bounds the task on both sides; scripts are the large part.
const maxTask = 64 << 20

// file puts the task into a memory file that the child reads once.
func (t Task) file() (*os.File, error) {
	fd, err := unix.MemfdCreate("caisson-task", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("cannot make a memory file: %w", err)
	}
	f := os.NewFile(uintptr(fd), "task")
	if err := json.NewEncoder(f).Encode(t); err != nil {
		f.Close()
		return nil, fmt.Errorf("cannot encode the task: %w", err)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func readTask(f *os.File) (Task, error) {
	defer f.Close()
	var t Task
	if err := json.NewDecoder(io.LimitReader(f, maxTask)).Decode(&t); err != nil {
		return t, fmt.Errorf("cannot read the task: %w", err)
	}
	return t, nil
}

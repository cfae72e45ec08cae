package host

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// jailConfig goes from Start to EnterJail in a memfd: the environment stays
// empty and the command line short. Layout: a length (4 bytes, little endian),
// that much JSON, then the contents of the root files in the order of Root.
// Both ends are our own binary, so nothing here is hostile.
type jailConfig struct {
	UID, GID       uint32
	UserNS         bool
	SurvivesParent bool
	Files          int // descriptors that stay open after stderr
	CgroupFDs      int
	NoFile         uint64
	TmpBytes       int64
	Dirs           []JailDir
	Root           []jailFile

	contents []byte // of the root files, one after the other
}

type jailFile struct {
	Name string
	Size int
}

const jailArgPrefix = "jail="

// jailArg is the argument that tells the child where its configuration is. It
// stands before the mode's own arguments, and EnterJail takes it away.
func jailArg(files int) string { return jailArgPrefix + strconv.Itoa(3+files) }

// takeJailArg removes the argument again and returns the descriptor.
func takeJailArg() (int, error) {
	if len(os.Args) < 2 || !strings.HasPrefix(os.Args[1], jailArgPrefix) {
		return 0, errors.New("not started by Jail.Start")
	}
	fd, err := strconv.Atoi(os.Args[1][len(jailArgPrefix):])
	if err != nil || fd < 3 {
		return 0, fmt.Errorf("bad argument %q", os.Args[1])
	}
	os.Args = slices.Delete(slices.Clone(os.Args), 1, 2)
	return fd, nil
}

func (c jailConfig) memfd(root map[string][]byte) (*os.File, error) {
	for name, data := range root {
		c.Root = append(c.Root, jailFile{name, len(data)})
	}
	slices.SortFunc(c.Root, func(a, b jailFile) int { return strings.Compare(a.Name, b.Name) })
	head, err := json.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("cannot encode jail config: %w", err)
	}
	buf := binary.LittleEndian.AppendUint32(nil, uint32(len(head)))
	buf = append(buf, head...)
	for _, f := range c.Root {
		buf = append(buf, root[f.Name]...)
	}
	fd, err := unix.MemfdCreate("caisson-jail", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("cannot create memfd: %w", err)
	}
	f := os.NewFile(uintptr(fd), "jail-config")
	if _, err := f.Write(buf); err != nil {
		f.Close()
		return nil, fmt.Errorf("cannot write jail config: %w", err)
	}
	return f, nil
}

// readJailConfig reads and closes the memfd.
func readJailConfig(fd int) (jailConfig, error) {
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return jailConfig{}, fmt.Errorf("cannot read jail config: %w", err)
	}
	buf := make([]byte, st.Size)
	if n, err := unix.Pread(fd, buf, 0); err != nil || int64(n) != st.Size {
		return jailConfig{}, fmt.Errorf("cannot read jail config: %d of %d bytes: %w", n, st.Size, err)
	}
	if len(buf) < 4 || uint64(len(buf)) < 4+uint64(binary.LittleEndian.Uint32(buf)) {
		return jailConfig{}, errors.New("cannot read jail config: short")
	}
	head := buf[4 : 4+binary.LittleEndian.Uint32(buf)]
	var c jailConfig
	if err := json.Unmarshal(head, &c); err != nil {
		return jailConfig{}, fmt.Errorf("cannot read jail config: %w", err)
	}
	c.contents = buf[4+len(head):]
	return c, nil
}

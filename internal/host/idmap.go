package host

import (
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// IDMap says whose files on disk look like whose through a mount: one owner
// outside, one inside, both ways. Files of anybody else show as the overflow
// id and cannot be created.
type IDMap struct {
	DiskUID, DiskGID uint32 // who owns the files on disk
	UID, GID         uint32 // who the kernel takes the process for
}

// NewIDMap returns a user namespace with those mappings, for
// BindOptions.IDMap. The kernel reads its maps from inside to outside: the
// inner id is the one on disk, the outer the one seen. No id may occur twice
// on the same side.
func NewIDMap(maps ...IDMap) (*os.File, error) {
	attr := &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER}
	for _, m := range maps {
		attr.UidMappings = append(attr.UidMappings, syscall.SysProcIDMap{ContainerID: int(m.DiskUID), HostID: int(m.UID), Size: 1})
		attr.GidMappings = append(attr.GidMappings, syscall.SysProcIDMap{ContainerID: int(m.DiskGID), HostID: int(m.GID), Size: 1})
	}
	var ns *os.File
	err := stillborn(attr, func(pid int) (err error) {
		ns, err = os.Open(fmt.Sprintf("/proc/%d/ns/user", pid))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("cannot make id mapping: %w", supported(err))
	}
	return ns, nil
}

package image

import "fmt"

// Limits bound what one image may cost. Zero means the default.
type Limits struct {
	MaxBytes   int64 // file data of all layers, unpacked; also the bound on one file
	MaxEntries int64 // names in all layers, replaced and removed ones included
}

const (
	defaultMaxBytes   = 8 << 30
	defaultMaxEntries = 1_000_000

	maxName   = 255      // bytes of one name, as on every Linux file system
	maxTarget = 4095     // bytes of a symlink, what the sandbox kernel reads of one
	maxDepth  = 128      // directories above an entry
	maxLinks  = 40       // symlinks followed for one name, as Linux does
	maxNames  = 96 << 20 // bytes of all names and symlink targets, held in memory
	maxLayers = 1024
)

func (l Limits) withDefaults() Limits {
	if l.MaxBytes == 0 {
		l.MaxBytes = defaultMaxBytes
	}
	if l.MaxEntries == 0 {
		l.MaxEntries = defaultMaxEntries
	}
	return l
}

// Validate refuses limits that cannot hold. The upper bound on entries keeps
// the tree within the child's memory.
func (l Limits) Validate() error {
	if l.MaxBytes < 0 || l.MaxBytes > 1<<42 {
		return fmt.Errorf("cannot use image size limit %d: must be between 1 byte and 4 TiB", l.MaxBytes)
	}
	if l.MaxEntries < 0 || l.MaxEntries > 4_000_000 {
		return fmt.Errorf("cannot use image entry limit %d: must be between 1 and 4,000,000", l.MaxEntries)
	}
	return nil
}

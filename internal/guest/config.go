package guest

import (
	"encoding/json"
	"errors"
	"fmt"
)

// Port is where the guest program listens inside the sandbox, on 127.0.0.1
// only. It is the port that E2B's clients expect.
const Port = 49983

// ConfigFD is the descriptor from which PID 1 reads its Config, as JSON, and
// closes it. It is not in the environment: gVisor shows that of PID 1 to every
// process inside, in /proc/gvisor/spec_environ.
const ConfigFD = 3

// MaxConfig bounds it, in bytes.
const MaxConfig = 1 << 20

// TokenHeader carries Config.Token on every request.
const TokenHeader = "X-Access-Token"

// UntilExitHeader on a Start request, with any value, ends the streams of the
// process with the process itself. E2B's clients, which do not send it, get
// them until the last descendant has closed them.
const UntilExitHeader = "X-Caisson-Until-Exit"

// Config is what the host tells the guest program at start. Sizes are bytes.
// Zero means "no such thing", never "unlimited".
type Config struct {
	Token    string `json:"token"`
	Hostname string `json:"hostname"`

	// Image is the read-only lower directory, already mounted by the kernel.
	// The root of user processes is an overlay of it and a tmpfs of DiskBytes
	// and DiskInodes.
	Image      string `json:"image"`
	DiskBytes  int64  `json:"disk_bytes"`
	DiskInodes int64  `json:"disk_inodes"`
	ShmBytes   int64  `json:"shm_bytes"`

	// Mounts are directories or files already mounted at Source, outside the
	// user's root, to be bound at Target inside it.
	Mounts []Mount `json:"mounts,omitempty"`

	Pids     int64 `json:"pids"`      // tasks of all user processes together
	NoFile   int64 `json:"nofile"`    // open files of one process
	FileSize int64 `json:"file_size"` // largest file a process may write

	// User is who processes run as unless a request names somebody else. It is
	// added to /etc/passwd when the image does not know it.
	User    User              `json:"user"`
	WorkDir string            `json:"work_dir,omitempty"` // default: the user's home
	Env     map[string]string `json:"env,omitempty"`      // added to every process
}

// Mount is one bind mount into the user's root.
type Mount struct {
	Source   string `json:"source"`
	Target   string `json:"target"`
	ReadOnly bool   `json:"read_only,omitempty"`
	File     bool   `json:"file,omitempty"` // a single file, not a directory
}

// User is an account inside the sandbox.
type User struct {
	Name string `json:"name"`
	UID  uint32 `json:"uid"`
	GID  uint32 `json:"gid"`
	Home string `json:"home"`
}

// Encode returns what PID 1 reads.
func (c Config) Encode() (string, error) {
	b, err := json.Marshal(c)
	if err != nil {
		return "", fmt.Errorf("cannot encode guest config: %w", err)
	}
	return string(b), nil
}

// DecodeConfig reads what Encode returned.
func DecodeConfig(s string) (Config, error) {
	var c Config
	if err := json.Unmarshal([]byte(s), &c); err != nil {
		return Config{}, fmt.Errorf("cannot read the configuration: %w", err)
	}
	if c.Token == "" {
		return Config{}, errors.New("the configuration has no token")
	}
	return c, nil
}

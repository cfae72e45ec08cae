package gvisor

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"caisson.dev/caisson/internal/driver"
	"caisson.dev/caisson/internal/host"
)

// usrDirs are the directories below /usr that packages own. /usr/local and
// /usr/src are not among them: what a person put there was not meant for a
// sandbox.
var usrDirs = []string{"bin", "sbin", "lib", "lib32", "lib64", "libx32", "libexec", "share", "include", "games"}

// stageMounts builds, in this process's private mount namespace, the tree
// that the gofer serves: everything the sandbox sees of the host and nothing
// else (I6). It vanishes with the namespace.
func stageMounts(req createRequest) (string, error) {
	if err := unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
		return "", fmt.Errorf("cannot make mounts private: %w", err)
	}
	stage := filepath.Join(req.StateDir, "stage")
	if err := os.MkdirAll(stage, 0o755); err != nil {
		return "", fmt.Errorf("cannot make the stage: %w", err)
	}
	if err := unix.Mount("caisson", stage, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "size=4m,mode=0755"); err != nil {
		return "", fmt.Errorf("cannot mount the stage: %w", err)
	}
	if req.Spec.Host != nil {
		if err := stageHost(filepath.Join(stage, "image"), *req.Spec.Host); err != nil {
			return "", err
		}
	}
	for i, m := range req.Spec.Mounts {
		if err := stageMount(filepath.Join(stage, "mnt", strconv.Itoa(i)), m, req); err != nil {
			return "", err
		}
	}
	return stage, nil
}

// stageMount shows m at dst with its owner's files owned by the guest user,
// in both directions: writes of that user arrive as the owner, and nobody
// else in the sandbox has an identity that the file system knows.
func stageMount(dst string, m driver.Mount, req createRequest) error {
	if err := makeMountPoint(dst, m.File); err != nil {
		return err
	}
	src, err := host.OpenPath(m.Source)
	if err != nil {
		return fmt.Errorf("cannot mount %q: %w", m.Source, err)
	}
	defer src.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(src.Fd()), &st); err != nil {
		return fmt.Errorf("cannot mount %q: %w", m.Source, err)
	}
	if isDir := st.Mode&unix.S_IFMT == unix.S_IFDIR; isDir == m.File {
		return fmt.Errorf("cannot mount %q: it changed between a file and a directory", m.Source)
	}
	ns, err := host.NewIDMap(mountIDs(st, idBase+req.Slot*idSize, req.Spec)...)
	if err != nil {
		return err
	}
	defer ns.Close()
	return host.BindFile(src, dst, host.BindOptions{ReadOnly: m.ReadOnly, IDMap: int(ns.Fd())})
}

// mountIDs maps the owner of the directory to the guest user. The gofer makes
// each file as the root of its namespace first and then gives it to the guest
// user, so that it needs an id on disk for that moment; one that belongs to
// nobody, and stays only on a file whose maker was killed in between.
func mountIDs(st unix.Stat_t, base uint32, s driver.Spec) []host.IDMap {
	owner := host.IDMap{DiskUID: st.Uid, DiskGID: st.Gid, UID: base + s.MapUID, GID: base + s.MapGID}
	if s.MapUID == 0 && s.MapGID == 0 {
		return []host.IDMap{owner}
	}
	return []host.IDMap{owner, {DiskUID: base, DiskGID: base, UID: base, GID: base}}
}

func makeMountPoint(dst string, file bool) error {
	if !file {
		return os.MkdirAll(dst, 0o755)
	}
	if err := os.MkdirAll(filepath.Dir(dst), 0o755); err != nil {
		return err
	}
	return os.WriteFile(dst, nil, 0o644)
}

// stageHost assembles the host image. Its gofer runs in a user namespace in
// which no host uid exists, so that permission bits for "others" are all it
// has: a file of mode 0600 stays closed even to guest root.
func stageHost(dir string, h driver.HostImage) error {
	for _, d := range usrDirs {
		if err := bindRO("/usr/"+d, filepath.Join(dir, "usr", d)); err != nil {
			return err
		}
	}
	for _, d := range []string{"bin", "sbin", "lib", "lib32", "lib64", "libx32"} {
		if err := stageRootDir(dir, d); err != nil {
			return err
		}
	}
	if h.Local {
		if err := bindRO("/usr/local", filepath.Join(dir, "usr/local")); err != nil {
			return err
		}
	}
	if h.Opt {
		if err := bindRO("/opt", filepath.Join(dir, "opt")); err != nil {
			return err
		}
	}
	for _, d := range []string{"dev", "proc", "sys", "tmp", "run", "root", "home", "var/tmp", "mnt", "srv", "usr/local"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return err
		}
	}
	return stageEtc(filepath.Join(dir, "etc"))
}

// stageRootDir shows /bin and its kin: as the link into /usr that merged
// systems have, or as the directory itself on older ones.
func stageRootDir(dir, name string) error {
	link, err := os.Readlink("/" + name)
	if err == nil {
		if t := strings.TrimPrefix(link, "/"); strings.HasPrefix(t, "usr/") {
			return os.Symlink(t, filepath.Join(dir, name))
		}
		return nil
	}
	return bindRO("/"+name, filepath.Join(dir, name))
}

// bindRO binds src read-only on dst, and does nothing when src is not there.
func bindRO(src, dst string) error {
	fi, err := os.Lstat(src)
	if err != nil || !fi.IsDir() {
		return nil
	}
	if err := os.MkdirAll(dst, 0o755); err != nil {
		return err
	}
	return host.BindMount(src, dst, host.BindOptions{ReadOnly: true})
}

// stageEtc writes the few files that programs ask for, and the links of the
// alternatives system, which are names of files in /usr and nothing more.
func stageEtc(dir string) error {
	if err := os.MkdirAll(filepath.Join(dir, "alternatives"), 0o755); err != nil {
		return err
	}
	for name, text := range etcFiles {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return fmt.Errorf("cannot write /etc/%s of the host image: %w", name, err)
		}
	}
	entries, err := os.ReadDir("/etc/alternatives")
	if err != nil {
		return nil
	}
	for _, e := range entries {
		link, err := os.Readlink("/etc/alternatives/" + e.Name())
		if err != nil || !strings.HasPrefix(link, "/usr/") {
			continue
		}
		if err := os.Symlink(link, filepath.Join(dir, "alternatives", e.Name())); err != nil {
			return err
		}
	}
	return nil
}

var etcFiles = map[string]string{
	"passwd":        "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n",
	"group":         "root:x:0:\nnogroup:x:65534:\n",
	"nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
	"hosts":         "127.0.0.1 localhost\n",
	"host.conf":     "multi on\n",
	"resolv.conf":   "",
	"os-release":    "ID=caisson-host\nNAME=\"Caisson host image\"\n",
	"services":      "http 80/tcp\nhttps 443/tcp\nssh 22/tcp\ndomain 53/udp\n",
	"protocols":     "ip 0 IP\nicmp 1 ICMP\ntcp 6 TCP\nudp 17 UDP\n",
}

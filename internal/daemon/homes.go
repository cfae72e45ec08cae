package daemon

import (
	"bufio"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// homes returns the home directories of people on this machine: of root, of
// ordinary accounts, of whoever calls us, and all of /home.
func homes() []string {
	list := []string{"/root", "/home"}
	if h := os.Getenv("HOME"); filepath.IsAbs(h) && h != "/" {
		list = append(list, filepath.Clean(h))
	}
	list = append(list, passwdHomes("/etc/passwd")...)
	if entries, err := os.ReadDir("/home"); err == nil {
		for _, e := range entries {
			list = append(list, filepath.Join("/home", e.Name()))
		}
	}
	for _, h := range list {
		if real, err := filepath.EvalSymlinks(h); err == nil {
			list = append(list, real)
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// passwdHomes lists the homes of accounts that people log into: system
// accounts have homes such as /usr/sbin.
func passwdHomes(file string) (list []string) {
	f, err := os.Open(file)
	if err != nil {
		return nil
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		fields := strings.Split(s.Text(), ":")
		if len(fields) < 6 || !filepath.IsAbs(fields[5]) || filepath.Clean(fields[5]) == "/" {
			continue
		}
		if uid, err := strconv.Atoi(fields[2]); err == nil && (uid == 0 || uid >= 1000 && uid < 65534) {
			list = append(list, filepath.Clean(fields[5]))
		}
	}
	return list
}

package main

import (
	"bytes"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"caisson.dev/caisson/internal/guest"
)

// account is a line of /etc/passwd. The file belongs to guest root, who may
// give any name any id: that is no more than guest root already has.
type account struct {
	name     string
	uid, gid uint32
	home     string
	groups   []uint32 // supplementary
}

var userName = regexp.MustCompile(`^[a-z_][a-z0-9_.-]{0,31}$`)

func validName(s string) bool { return userName.MatchString(s) }

// validField reports whether s may be one field of a line of /etc/passwd.
func validField(s string) bool { return s != "" && !strings.ContainsAny(s, ":\n\x00") }

// parseAccount finds name in the text of /etc/passwd.
func parseAccount(passwd []byte, name string) (account, bool) {
	for line := range bytes.Lines(passwd) {
		f := strings.Split(strings.TrimSuffix(string(line), "\n"), ":")
		if len(f) < 7 || f[0] != name {
			continue
		}
		uid, err1 := strconv.ParseUint(f[2], 10, 32)
		gid, err2 := strconv.ParseUint(f[3], 10, 32)
		// The highest id means "unchanged" to setresuid: it would keep root.
		if err1 != nil || err2 != nil || uint32(uid) == ^uint32(0) || uint32(gid) == ^uint32(0) {
			return account{}, false
		}
		home := f[5]
		if !strings.HasPrefix(home, "/") {
			home = "/"
		}
		return account{name: name, uid: uint32(uid), gid: uint32(gid), home: home}, true
	}
	return account{}, false
}

// maxGroups is the kernel's NGROUPS_MAX brought down to what anyone uses.
const maxGroups = 64

// parseGroups returns the supplementary groups of name.
func parseGroups(group []byte, name string) []uint32 {
	var out []uint32
	for line := range bytes.Lines(group) {
		f := strings.Split(strings.TrimSuffix(string(line), "\n"), ":")
		if len(f) < 4 || len(out) == maxGroups {
			continue
		}
		gid, err := strconv.ParseUint(f[2], 10, 32)
		if err != nil || uint32(gid) == ^uint32(0) {
			continue
		}
		for m := range strings.SplitSeq(f[3], ",") {
			if m == name {
				out = append(out, uint32(gid))
				break
			}
		}
	}
	return out
}

// parseNames maps ids to names, for listings.
func parseNames(table []byte) map[uint32]string {
	names := map[uint32]string{}
	for line := range bytes.Lines(table) {
		f := strings.SplitN(string(line), ":", 4)
		if len(f) < 4 {
			continue
		}
		id, err := strconv.ParseUint(f[2], 10, 32)
		if _, known := names[uint32(id)]; err == nil && !known {
			names[uint32(id)] = f[0]
		}
	}
	return names
}

func hasName(table []byte, name string) bool {
	return bytes.HasPrefix(table, []byte(name+":")) || bytes.Contains(table, []byte("\n"+name+":"))
}

// appendLine adds a line to a table that may lack its last newline.
func appendLine(table []byte, line string) []byte {
	if n := len(table); n > 0 && table[n-1] != '\n' {
		table = append(table, '\n')
	}
	return append(table, line+"\n"...)
}

// writeEtc writes the files that make a root usable: names, and no resolver,
// because there is no network that a program could use without being told.
func writeEtc(root *rootDir, c guest.Config) error {
	shell := "/bin/sh"
	if root.exists("/bin/bash") {
		shell = "/bin/bash"
	}
	if err := addAccount(root, c.User, shell); err != nil {
		return err
	}
	hosts := "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n127.0.1.1 " + c.Hostname + "\n"
	for _, f := range [][2]string{
		{"/etc/hostname", c.Hostname + "\n"},
		{"/etc/hosts", hosts},
		{"/etc/resolv.conf", ""},
	} {
		if err := root.replaceFile(f[0], []byte(f[1])); err != nil {
			return err
		}
	}
	if err := makeOwned(root, "/tmp", 0, 0, 0o1777, true); err != nil {
		return err
	}
	if err := makeOwned(root, c.User.Home, c.User.UID, c.User.GID, 0o755, false); err != nil {
		return err
	}
	if c.WorkDir == "" {
		return nil
	}
	return makeOwned(root, c.WorkDir, c.User.UID, c.User.GID, 0o755, false)
}

// addAccount adds root and the configured user where the image lacks them.
func addAccount(root *rootDir, u guest.User, shell string) error {
	passwd, group, shadow := root.readFile("/etc/passwd"), root.readFile("/etc/group"), root.readFile("/etc/shadow")
	// No password opens the account. Where there is a shadow file the line
	// must be in it: sudo takes a missing one for a locked account.
	password := "*"
	if len(shadow) > 0 {
		password = "x"
	}
	changed := false
	for _, a := range []guest.User{{Name: "root", Home: "/root"}, u} {
		if !hasName(passwd, a.Name) {
			passwd = appendLine(passwd, fmt.Sprintf("%s:%s:%d:%d::%s:%s", a.Name, password, a.UID, a.GID, a.Home, shell))
			changed = true
		}
		if !hasName(group, a.Name) {
			group = appendLine(group, fmt.Sprintf("%s:x:%d:", a.Name, a.GID))
			changed = true
		}
		if len(shadow) > 0 && !hasName(shadow, a.Name) {
			if err := root.appendFile("/etc/shadow", a.Name+":*:19000:0:99999:7:::\n"); err != nil {
				return err
			}
		}
	}
	if !changed {
		return nil
	}
	if err := root.replaceFile("/etc/passwd", passwd); err != nil {
		return err
	}
	return root.replaceFile("/etc/group", group)
}

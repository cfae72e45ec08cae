package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseAccount(t *testing.T) {
	const passwd = "root:x:0:0:root:/root:/bin/sh\n" +
		"user:x:1000:1001::/home/user:/bin/bash\n" +
		"minus:x:4294967295:0::/:/bin/sh\n" +
		"word:x:abc:0::/:/bin/sh\n" +
		"big:x:4294967296:0::/:/bin/sh\n" +
		"rel:x:5:5::home:/bin/sh\n" +
		"short:x:1:1\n" +
		"last:x:7:8::/l:/bin/sh"
	for _, c := range []struct {
		name string
		want account
		ok   bool
	}{
		{"user", account{name: "user", uid: 1000, gid: 1001, home: "/home/user"}, true},
		{"rel", account{name: "rel", uid: 5, gid: 5, home: "/"}, true},
		{"last", account{name: "last", uid: 7, gid: 8, home: "/l"}, true},
		// setresuid takes -1 as "leave it": the process would stay root.
		{"minus", account{}, false},
		{"word", account{}, false},
		{"big", account{}, false},
		{"short", account{}, false},
		{"", account{}, false},
		{"use", account{}, false},
	} {
		got, ok := parseAccount([]byte(passwd), c.name)
		if ok != c.ok || !cmp.Equal(got, c.want, cmp.AllowUnexported(account{})) {
			t.Errorf("parseAccount(%q) = %+v, %v", c.name, got, ok)
		}
	}
}

func TestParseGroups(t *testing.T) {
	group := "a:x:1:user,other\nb:x:2:\nc:x:3:other,user\nd:x:4294967295:user\ne:x:5:users\nbroken\n"
	if diff := cmp.Diff([]uint32{1, 3}, parseGroups([]byte(group), "user")); diff != "" {
		t.Error(diff)
	}
}

func FuzzParseAccount(f *testing.F) {
	f.Add([]byte("user:x:1000:1000::/home/user:/bin/sh\n"), "user")
	f.Add([]byte(":::::::\n"), "")
	f.Fuzz(func(t *testing.T, table []byte, name string) {
		a, ok := parseAccount(table, name)
		if ok && (a.uid == ^uint32(0) || a.gid == ^uint32(0) || a.home == "" || a.home[0] != '/') {
			t.Errorf("parseAccount(%q) gives %+v", table, a)
		}
		if n := len(parseGroups(table, name)); n > maxGroups {
			t.Errorf("%d groups", n)
		}
		parseNames(table)
	})
}

package image

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// credentials are for one registry. They go to the fetch child of one pull
// and nowhere else.
type credentials struct{ username, password, token string }

// maxAuthFile bounds the operator's own file, against a wrong path.
const maxAuthFile = 1 << 20

// findCredentials reads the entry of one registry from a file in Docker's
// format. Only "auths" is read: a credential helper named there is a program
// that we would run as whoever we are, so it is not.
func findCredentials(file, registry string) (credentials, error) {
	if file == "" {
		file = defaultAuthFile()
		if _, err := os.Stat(file); err != nil {
			return credentials{}, nil
		}
	}
	f, err := os.Open(file)
	if err != nil {
		return credentials{}, fmt.Errorf("cannot read credentials: %w", err)
	}
	defer f.Close()
	var config struct {
		Auths map[string]struct{ Auth, Username, Password, IdentityToken string }
	}
	if err := json.NewDecoder(io.LimitReader(f, maxAuthFile)).Decode(&config); err != nil {
		return credentials{}, fmt.Errorf("cannot read credentials in %q: %w", file, err)
	}
	for key, a := range config.Auths {
		if hostOfKey(key) != registry {
			continue
		}
		c := credentials{a.Username, a.Password, a.IdentityToken}
		if a.Auth != "" {
			if c.username, c.password, err = decodeAuth(a.Auth); err != nil {
				return credentials{}, fmt.Errorf("cannot read credentials of %q in %q: %w", registry, file, err)
			}
		}
		return c, nil
	}
	return credentials{}, nil
}

func defaultAuthFile() string {
	if dir := os.Getenv("DOCKER_CONFIG"); dir != "" {
		return filepath.Join(dir, "config.json")
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return ""
	}
	return filepath.Join(home, ".docker", "config.json")
}

// hostOfKey takes "https://HOST/v1/" and "HOST".
func hostOfKey(key string) string {
	_, rest, ok := strings.Cut(key, "://")
	if !ok {
		rest = key
	}
	host, _, _ := strings.Cut(rest, "/")
	return strings.ToLower(host)
}

func decodeAuth(s string) (user, password string, err error) {
	b, err := base64.StdEncoding.DecodeString(s)
	if err != nil {
		return "", "", errors.New("not base64") // the cause would quote it
	}
	user, password, ok := strings.Cut(string(b), ":")
	if !ok {
		return "", "", errors.New("not USER:PASSWORD")
	}
	return user, strings.TrimRight(password, "\x00"), nil
}

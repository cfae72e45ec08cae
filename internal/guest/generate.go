package guest

// The generated packages are committed; generate.sh writes them again with
// the versions of go.mod and needs protoc on the PATH. `generate.sh check`
// fails when the committed output differs.

//go:generate sh generate.sh

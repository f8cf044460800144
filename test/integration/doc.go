// Package integration runs rooms of the program against a real API server, for what no fake does: conflicts,
// finalizers, validation, watches and rights. One file stands for one controller or room.
// It has only tests, and is imported by nobody.
package integration

//go:build !linux

package memdriver

import "errors"

var errNoMounts = errors.New("memdriver: volumes are mounted only on Linux")

func mounted(string) (bool, error)     { return false, errNoMounts }
func bind(string, string, bool) error  { return errNoMounts }
func unbind(string) error              { return errNoMounts }
func loopsOf(string) ([]string, error) { return nil, errNoMounts }
func attach(string) (string, error)    { return "", errNoMounts }
func detach(string) error              { return errNoMounts }
func resized(string) error             { return errNoMounts }

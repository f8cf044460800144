//go:build !linux

package process

import "errors"

// takeProcessLock fails: this system has nothing that only one process of a pod can hold and that ends with it.
func takeProcessLock(string) (place string, err error) {
	return "", errors.New("there is no process lock on this system")
}

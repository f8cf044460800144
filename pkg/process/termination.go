package process

import (
	"fmt"
	"os"
	"unicode/utf8"
)

// TerminationLog is where the kubelet looks for the last words of a container.
const TerminationLog = "/dev/termination-log"

// maxTermination is what the kubelet reads of it.
const maxTermination = 4096

// WriteTermination leaves message in the file at path, cut to 4 KiB. The file must exist, as it does in every
// container: outside of one nothing is created.
func WriteTermination(path, message string) error {
	if len(message) > maxTermination {
		message = message[:maxTermination]
		for len(message) > 0 {
			if r, size := utf8.DecodeLastRuneInString(message); r != utf8.RuneError || size > 1 {
				break
			}
			message = message[:len(message)-1]
		}
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0) //nolint:gosec // the path is a constant outside of tests
	if err != nil {
		return fmt.Errorf("leave a termination message: %w", err)
	}
	if _, err := file.WriteString(message); err != nil {
		_ = file.Close()
		return fmt.Errorf("leave a termination message: %w", err)
	}
	if err := file.Close(); err != nil {
		return fmt.Errorf("leave a termination message: %w", err)
	}
	return nil
}

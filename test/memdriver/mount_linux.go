package memdriver

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// mounted tells whether something is mounted at the path, also of a file.
func mounted(path string) (bool, error) {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return false, err
	}
	escaped := strings.NewReplacer(`\`, `\134`, " ", `\040`, "\t", `\011`, "\n", `\012`).Replace(filepath.Clean(path))
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) > 4 && fields[4] == escaped {
			return true, nil
		}
	}
	return false, nil
}

// bind shows source, a folder or a file, at target, which exists. It is no error when something is mounted there already.
func bind(source, target string, readonly bool) error {
	if there, err := mounted(target); err != nil || there {
		return err
	}
	if err := unix.Mount(source, target, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind %s to %s: %w", source, target, err)
	}
	if !readonly {
		return nil
	}
	// The flag counts only when a bind mount is mounted again.
	if err := unix.Mount("", target, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		return errors.Join(fmt.Errorf("make %s read-only: %w", target, err), unbind(target))
	}
	return nil
}

// unbind undoes all mounts at the path; it is no error when there are none.
func unbind(path string) error {
	for {
		there, err := mounted(path)
		if err != nil || !there {
			return err
		}
		// A child that is just being forked shares the open files below for a moment: what is busy goes with its last user.
		if err := unix.Unmount(path, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH); err != nil {
			return fmt.Errorf("unmount %s: %w", path, err)
		}
	}
}

// loopsOf lists the loop devices that the file is attached to, sorted by name.
func loopsOf(file string) ([]string, error) {
	entries, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return nil, err
	}
	var devices []string
	for _, entry := range entries {
		text, err := os.ReadFile(entry)
		if detached(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if strings.TrimSuffix(string(text), "\n") == file {
			devices = append(devices, "/dev/"+strings.Split(entry, "/")[3])
		}
	}
	slices.Sort(devices)
	return devices, nil
}

// detached tells whether an error says that a loop device was freed in the meantime.
func detached(err error) bool {
	return errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENXIO) || errors.Is(err, unix.ENODEV)
}

// attach returns a loop device of the file: the one that it has, or else a new one.
func attach(file string) (device string, err error) {
	devices, err := loopsOf(file)
	if err != nil {
		return "", err
	}
	if len(devices) > 0 {
		return devices[0], nil
	}
	backing, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, backing.Close()) }()
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, control.Close()) }()
	const tries = 20
	for range tries {
		number, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return "", fmt.Errorf("find a free loop device: %w", err)
		}
		device = fmt.Sprintf("/dev/loop%d", number)
		err = configure(device, number, int(backing.Fd()))
		if !errors.Is(err, unix.EBUSY) { // Taken by another process since.
			return device, err
		}
	}
	return "", fmt.Errorf("attach %s: other processes took %d free loop devices first", file, tries)
}

func configure(device string, number, backing int) (err error) {
	const loopMajor = 7
	// Where /dev is no devtmpfs, the node of a new device is missing.
	if err := unix.Mknod(device, unix.S_IFBLK|0o660, int(unix.Mkdev(loopMajor, uint32(number)))); err != nil && !errors.Is(err, unix.EEXIST) { //nolint:gosec // a small number
		return fmt.Errorf("make %s: %w", device, err)
	}
	loop, err := os.OpenFile(device, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, loop.Close()) }()
	if err := unix.IoctlLoopConfigure(int(loop.Fd()), &unix.LoopConfig{Fd: uint32(backing)}); err != nil { //nolint:gosec // a descriptor
		return fmt.Errorf("configure %s: %w", device, err)
	}
	return nil
}

// eachLoop sends a command to all loop devices of the file.
func eachLoop(file string, command uint) error {
	devices, err := loopsOf(file)
	if err != nil {
		return err
	}
	for _, device := range devices {
		loop, err := os.OpenFile(device, os.O_RDWR, 0)
		if err != nil {
			return err
		}
		err = unix.IoctlSetInt(int(loop.Fd()), command, 0)
		if err := errors.Join(err, loop.Close()); err != nil && !detached(err) {
			return fmt.Errorf("tell %s: %w", device, err)
		}
	}
	return nil
}

// detach frees all loop devices of the file; those in use are freed by the kernel with their last user.
func detach(file string) error { return eachLoop(file, unix.LOOP_CLR_FD) }

// resized lets all loop devices of the file have its present size.
func resized(file string) error { return eachLoop(file, unix.LOOP_SET_CAPACITY) }

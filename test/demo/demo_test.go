package main

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/csi-sidecars/external-provisioner/test/cluster"
)

// programs builds the demo and the driver, and puts them beside bin/csi-provisioner, which must be there.
func programs(t *testing.T) (dir string) {
	t.Helper()
	root, err := cluster.RepoRoot()
	if err != nil {
		t.Fatal(err)
	}
	dir = t.TempDir()
	for name, pkg := range map[string]string{"demo": "./test/demo", "memdriver": "./test/memdriver/cmd/memdriver"} {
		build := exec.CommandContext(t.Context(), "go", "build", "-tags=grpcnotrace", "-o", filepath.Join(dir, name), pkg)
		build.Dir = root
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("build %s: %v\n%s", name, err, out)
		}
	}
	built := filepath.Join(root, "bin", "csi-provisioner")
	if _, err := os.Stat(built); err != nil {
		t.Fatalf("%v: run `make build`", err)
	}
	for _, name := range []string{"csi-provisioner", "cluster"} {
		if err := os.Symlink(filepath.Join(root, "bin", name), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// play runs the demo, interrupts it when its output has a line with the given text, and returns output and exit code.
func play(t *testing.T, dir, interruptAt string, args ...string) (output string, exitCode int) {
	t.Helper()
	tmp, err := os.MkdirTemp("", "play-") // A socket's path has to fit into 108 bytes.
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(tmp)
	cmd := exec.CommandContext(t.Context(), filepath.Join(dir, "demo"), append(args, "-bin="+dir)...)
	cmd.Env = append(os.Environ(), "TMPDIR="+tmp)
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	lines, interrupted := bufio.NewScanner(stdout), false
	for lines.Scan() {
		b.WriteString(lines.Text() + "\n")
		if interruptAt != "" && !interrupted && strings.Contains(lines.Text(), interruptAt) {
			interrupted = true
			if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
				t.Error(err)
			}
		}
	}
	_ = cmd.Wait() // The exit code tells.
	if interruptAt != "" && !interrupted {
		t.Errorf("the line to interrupt at never came")
	}
	if left := processesWith(t, tmp); len(left) > 0 {
		t.Errorf("left running: %q", left)
	}
	if entries, err := os.ReadDir(tmp); err != nil || len(entries) > 0 {
		t.Errorf("left in the temporary folder: %v, %v", entries, err)
	}
	return b.String() + stderr.String(), cmd.ProcessState.ExitCode()
}

// processesWith returns the command lines that contain text, all of those that the demo starts have its folder.
func processesWith(t *testing.T, text string) []string {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, file := range files {
		line, err := os.ReadFile(file)
		if err == nil && strings.Contains(string(line), text) { // Otherwise it has ended meanwhile.
			found = append(found, string(line))
		}
	}
	return found
}

func TestDemoTellsItsStory(t *testing.T) {
	t.Parallel()
	output, exitCode := play(t, programs(t), "")
	if exitCode != 0 {
		t.Fatalf("exit code %d:\n%s", exitCode, output)
	}
	rest := output
	for _, want := range []string{
		`kube-scheduler is ready`,
		`csi-provisioner is ready`,
		`Bound to pvc-[0-9a-f-]{36} after \d+ ms`,
		`status +Bound`,
		`ProvisioningSucceeded +Successfully provisioned volume pvc-`,
		`CreateVolume +pvc-`,
		`DeleteVolume +`,
		`the driver has no volumes`,
		`csi-provisioner is stopped \(exit code 0\)`,
		`the control plane is stopped`,
	} {
		at := regexp.MustCompile(want).FindStringIndex(rest)
		if at == nil {
			t.Fatalf("no %q, or not in this order, in:\n%s", want, output)
		}
		rest = rest[at[1]:]
	}
}

//nolint:tparallel // five control planes at once are too many
func TestDemoLeavesNothingWhenInterrupted(t *testing.T) {
	t.Parallel()
	dir := programs(t)
	keep := []string{"-keep"}
	for line, tc := range map[string]struct {
		args []string
		// mayFinish says that the rest may take no longer than the signal; with -keep it does not end without that.
		mayFinish bool
	}{
		"1. Start a Kubernetes control plane": {},
		"etcd is ready":                       {},
		"the driver serves its socket":        {args: keep, mayFinish: true},
		"3. Create StorageClass":              {args: keep, mayFinish: true},
		"6. Delete the claim":                 {mayFinish: true},
	} {
		t.Run(line, func(t *testing.T) {
			output, exitCode := play(t, dir, line, tc.args...)
			if exitCode != 130 && (exitCode != 0 || !tc.mayFinish) {
				t.Errorf("exit code: want 130, got %d:\n%s", exitCode, output)
			}
		})
	}
}

func TestDemoStaysUpUntilInterrupted(t *testing.T) {
	t.Parallel()
	dir := programs(t)
	output, exitCode := play(t, dir, "delete pvc data", "-keep")
	if exitCode != 0 {
		t.Errorf("exit code after Ctrl-C: want 0, got %d", exitCode)
	}
	if want := dir + "/cluster/kubectl --kubeconfig "; !strings.Contains(output, want) {
		t.Errorf("no %q in:\n%s", want, output)
	}
}

package artifact

import (
	"bytes"
	"debug/buildinfo"
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/csi-sidecars/external-provisioner/test/cluster"
)

const (
	maxBytes   = 38_000_000
	maxModules = 85
)

func root(t *testing.T) string {
	t.Helper()
	dir, err := cluster.RepoRoot()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// binary is the file that `make build` made.
func binary(t *testing.T) string {
	t.Helper()
	file := filepath.Join(root(t), "bin", "csi-provisioner")
	if _, err := os.Stat(file); err != nil {
		t.Fatalf("%v: run `make build`", err)
	}
	return file
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestTheBinaryIsStatic(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("the binary of this platform is no ELF file")
	}
	file, err := elf.Open(binary(t))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for _, segment := range file.Progs {
		if segment.Type == elf.PT_INTERP || segment.Type == elf.PT_DYNAMIC {
			t.Errorf("it has a segment %s: an image without a loader cannot run it", segment.Type)
		}
	}
}

func TestTheBinaryIsSmall(t *testing.T) {
	t.Parallel()
	info, err := os.Stat(binary(t))
	if err != nil {
		t.Fatal(err)
	}
	if info.Size() > maxBytes {
		t.Errorf("size: want at most %d, got %d", maxBytes, info.Size())
	}
	build, err := buildinfo.ReadFile(binary(t))
	if err != nil {
		t.Fatal(err)
	}
	if len(build.Deps) > maxModules {
		t.Errorf("modules linked in: want at most %d, got %d", maxModules, len(build.Deps))
	}
	for _, dep := range build.Deps {
		switch dep.Path {
		case "k8s.io/kubernetes", "k8s.io/apiserver", "sigs.k8s.io/controller-runtime",
			"github.com/grpc-ecosystem/grpc-gateway/v2":
			t.Errorf("%s is linked in", dep.Path)
		}
	}
}

func TestTheVersionIsStamped(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), binary(t), "--version")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, stderr.String())
	}
	fields := strings.Fields(string(out))
	if len(fields) != 2 || fields[1] == "unknown" || strings.Count(string(out), "\n") != 1 {
		t.Errorf("want one line with the program and a version, got %q", out)
	}
	if stderr.Len() > 0 {
		t.Errorf("stderr: want nothing, got %q", stderr.String())
	}
}

// TestTwoBuildsAreAlike builds the sources in two folders: what is in the binary must not depend on where it was made.
func TestTwoBuildsAreAlike(t *testing.T) {
	t.Parallel()
	builds := make([][]byte, 2)
	for i := range builds {
		dir := t.TempDir()
		for _, name := range []string{"go.mod", "go.sum", "Makefile"} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(read(t, filepath.Join(root(t), name))), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		for _, name := range []string{"cmd", "pkg"} {
			if err := os.CopyFS(filepath.Join(dir, name), os.DirFS(filepath.Join(root(t), name))); err != nil {
				t.Fatal(err)
			}
		}
		build := exec.CommandContext(t.Context(), "make", "-C", dir, "build", "VERSION=v0.0.0-test")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		builds[i] = []byte(read(t, filepath.Join(dir, "bin", "csi-provisioner")))
	}
	if !bytes.Equal(builds[0], builds[1]) {
		t.Errorf("two builds of the same sources differ (%d and %d bytes)", len(builds[0]), len(builds[1]))
	}
}

var buildFlags = regexp.MustCompile(`build (\S+) -trimpath -buildvcs=false -ldflags ['"]-s -w -X main\.version=\S+['"]`)

func TestTheImageHoldsTheSameBinaryAndLittleElse(t *testing.T) {
	t.Parallel()
	dockerfile := read(t, filepath.Join(root(t), "Dockerfile"))
	makefile := read(t, filepath.Join(root(t), "Makefile"))
	inImage, inMake := buildFlags.FindStringSubmatch(dockerfile), buildFlags.FindStringSubmatch(makefile)
	if inImage == nil || inMake == nil {
		t.Fatalf("the build line is not found in Dockerfile (%q) or Makefile (%q)", inImage, inMake)
	}
	tags := regexp.MustCompile(`(?m)^TAGS := (\S+)$`).FindStringSubmatch(makefile)
	if inMake[1] != "$(TAGS)" || tags == nil || tags[1] != inImage[1] {
		t.Errorf("build tags: Dockerfile has %q, Makefile %q", inImage[1], tags)
	}
	_, last, found := strings.Cut(dockerfile, "\nFROM scratch\n")
	if !found {
		t.Fatal("the image is not built from scratch")
	}
	if !strings.HasSuffix(last, "\nENTRYPOINT [\"/csi-provisioner\"]\n") {
		t.Error("the entry point is not /csi-provisioner")
	}
	if regexp.MustCompile(`(?m)^(USER|FROM) `).MatchString(last) {
		t.Error("the image forces a user, or is not the last stage")
	}
}

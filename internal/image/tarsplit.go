package image

import (
	"encoding/json"
	"errors"
	"io"
	"os"

	"github.com/klauspost/compress/gzip"
	"github.com/vbatts/tar-split/tar/asm"
	"github.com/vbatts/tar-split/tar/storage"

	"wherry.dev/internal/safepath"
)

// tarRecord is the file next to an unpacked layer that has everything of its tar except the
// content of the files (tar-split, as in Docker and Podman). From both, the tar can be written
// again, byte for byte.
const tarRecord = "tar.json.gz"

// tarRecorder writes a tarRecord of what is read from its stream.
type tarRecorder struct {
	stream io.ReadCloser
	done   <-chan error
	file   *os.File
	zip    *gzip.Writer
}

// recordTar starts a record. The caller must call close.
func recordTar(path string, tarball io.Reader) (*tarRecorder, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	z, err := gzip.NewWriterLevel(f, gzip.BestSpeed)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	r := &tarRecorder{file: f, zip: z}
	r.stream, r.done, err = asm.NewInputTarStreamWithDone(tarball, &packer{enc: json.NewEncoder(z)}, nil)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return r, nil
}

// close ends the recording and waits until it has ended.
func (r *tarRecorder) close() error {
	err := r.stream.Close()
	return errors.Join(err, <-r.done, r.zip.Close(), r.file.Close())
}

// packer writes the entries of a record, one per line. Unlike the library's, it accepts a tar
// that has a file twice: that is legal, but cannot be exported.
type packer struct {
	enc *json.Encoder
	n   int
}

func (p *packer) AddEntry(e storage.Entry) (int, error) {
	e.Position = p.n
	p.n++
	return e.Position, p.enc.Encode(e)
}

// unpacker reads the entries of a record.
type unpacker struct{ dec *json.Decoder }

func (u unpacker) Next() (*storage.Entry, error) {
	e := new(storage.Entry)
	return e, u.dec.Decode(e)
}

// layerFiles opens the files of an unpacked layer, and none outside it.
type layerFiles struct{ *safepath.Dir }

func (l layerFiles) Get(name string) (io.ReadCloser, error) { return l.Regular(name) }

// writeTar writes the tar from which the layer in dir was unpacked.
func writeTar(w io.Writer, record, dir string) (err error) {
	f, err := os.Open(record)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	z, err := gzip.NewReader(f)
	if err != nil {
		return err
	}
	root, err := safepath.Open(dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	return asm.WriteOutputTarStream(layerFiles{root}, unpacker{json.NewDecoder(z)}, w)
}

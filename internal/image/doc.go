// Package image keeps container images: it pulls them from registries, imports
// them from archives, unpacks their layers for overlayfs and removes what nobody
// holds.
//
// On disk, below the folder that Open is given:
//
//	lock                    held by the process that has the store open
//	refs.json               record: every tag and digest reference → image ID
//	refs.copy.json          the same, read when the other cannot be
//	images/<hex>.json       record: one image (its layers by chain ID, its config)
//	images/<hex>.config     the config as it came: its digest is the image's ID
//	layers/<id>/fs          one unpacked layer, a lowerdir of overlayfs
//	layers/<id>/tar.json.gz the rest of the layer's tar, for Export
//	layers/<id>/meta.json   record: chain ID, diff ID, sizes
//	ingest/                 half-unpacked and removed layers; emptied by Open
//
// A layer is unpacked below ingest while it downloads, and renamed into place when
// it is whole; an image's record is written when all its layers are there and on the
// disk; a reference comes last. So a crash at any moment leaves only what Open sweeps
// away, and a pull that fails sweeps for itself. A record that cannot be read costs
// one image at most, until that is pulled or imported again.
//
// Registries are reached as by containerd: certs.d with hosts.toml, tokens, mirrors.
//
// The CRI server is the store's only caller inside a node; `wherry image` opens
// the store itself when no node has it open.
package image

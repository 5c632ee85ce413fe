package bolt

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"io"
)

// The part of bbolt's file format, version 2, that decides whether bbolt can walk
// a file. bbolt trusts its pages: if they are damaged, it panics in goroutines of
// its own, reads outside of the mapping, or loops for ever. So checkPages walks
// each file before bbolt does.
const (
	pageHeader    = 16
	elementHeader = 16
	bucketHeader  = 16
	metaLength    = 64

	magic   = 0xED0CDAED
	version = 2

	branchPage   = 0x01
	leafPage     = 0x02
	freelistPage = 0x10

	bucketElement = 0x01
)

var native = binary.NativeEndian

// meta is the content of a meta page.
type meta struct {
	root, freelist, end, txid uint64 // pages from end on are not in use
}

// pageCheck walks one file.
type pageCheck struct {
	file io.ReaderAt
	size int64 // of a page
	end  uint64
	used []bool // by page number: walked already
}

// checkPages checks the pages of the file: all pages in use exist, their structure
// and bounds are valid, keys are in order, and each page is used once. It does
// not check keys and values.
func checkPages(file io.ReaderAt, fileSize int64, pageSize int) error {
	m, err := newestMeta(file, int64(pageSize))
	if err != nil {
		return err
	}
	if m.end > uint64(fileSize)/uint64(pageSize) {
		return fmt.Errorf("%d pages are in use, the file has %d", m.end, fileSize/int64(pageSize))
	}
	c := &pageCheck{file: file, size: int64(pageSize), end: m.end, used: make([]bool, m.end)}
	if err := c.tree(m.root, nil, nil, c.buckets); err != nil {
		return err
	}
	return c.freelist(m.freelist)
}

// newestMeta returns the meta page that bbolt uses.
func newestMeta(file io.ReaderAt, pageSize int64) (meta, error) {
	var newest meta
	found := false
	for i := range int64(2) {
		b := make([]byte, metaLength)
		if _, err := file.ReadAt(b, i*pageSize+pageHeader); err != nil {
			return meta{}, fmt.Errorf("meta page %d: %w", i, err)
		}
		sum := fnv.New64a()
		sum.Write(b[:metaLength-8])
		if native.Uint32(b) != magic || native.Uint32(b[4:]) != version || native.Uint64(b[metaLength-8:]) != sum.Sum64() {
			continue
		}
		m := meta{root: native.Uint64(b[16:]), freelist: native.Uint64(b[32:]), end: native.Uint64(b[40:]), txid: native.Uint64(b[48:])}
		if !found || newest.txid < m.txid {
			newest, found = m, true
		}
	}
	if !found {
		return meta{}, fmt.Errorf("neither meta page is valid")
	}
	return newest, nil
}

// page reads page id with its overflow pages.
func (c *pageCheck) page(id uint64) ([]byte, error) {
	if id < 2 || id >= c.end {
		return nil, fmt.Errorf("page %d: is not in 2 to %d", id, c.end-1)
	}
	b := make([]byte, c.size)
	if _, err := c.file.ReadAt(b, int64(id)*c.size); err != nil {
		return nil, fmt.Errorf("page %d: %w", id, err)
	}
	if got := native.Uint64(b); got != id {
		return nil, fmt.Errorf("page %d: is marked as page %d", id, got)
	}
	more := uint64(native.Uint32(b[12:]))
	if more >= c.end-id {
		return nil, fmt.Errorf("page %d: %d more pages go beyond the end", id, more)
	}
	for i := id; i <= id+more; i++ {
		if c.used[i] {
			return nil, fmt.Errorf("page %d: is in use twice", i)
		}
		c.used[i] = true
	}
	if more == 0 {
		return b, nil
	}
	b = make([]byte, int64(more+1)*c.size)
	if _, err := c.file.ReadAt(b, int64(id)*c.size); err != nil {
		return nil, fmt.Errorf("page %d: %w", id, err)
	}
	return b, nil
}

// tree walks the pages below id, whose keys must be in [low, high), and calls
// visit for each leaf.
func (c *pageCheck) tree(id uint64, low, high []byte, visit func(element) error) error {
	b, err := c.page(id)
	if err != nil {
		return err
	}
	flags := native.Uint16(b[8:])
	if flags != branchPage && flags != leafPage {
		return fmt.Errorf("page %d: is neither branch nor leaf, but %#x", id, flags)
	}
	elements, err := elementsOf(b, flags == leafPage)
	if err != nil {
		return fmt.Errorf("page %d: %w", id, err)
	}
	if flags == branchPage && len(elements) == 0 {
		return fmt.Errorf("page %d: is an empty branch", id)
	}
	for i, e := range elements {
		next := high
		if i+1 < len(elements) {
			next = elements[i+1].key
		}
		if bytes.Compare(e.key, low) < 0 || next != nil && bytes.Compare(e.key, next) >= 0 {
			return fmt.Errorf("page %d: key %d is out of order", id, i)
		}
		if flags == branchPage {
			if err := c.tree(e.page, e.key, next, visit); err != nil {
				return err
			}
			continue
		}
		if err := visit(e); err != nil {
			return fmt.Errorf("page %d: key %d: %w", id, i, err)
		}
	}
	return nil
}

// element is one entry of a branch or a leaf.
type element struct {
	flags uint32
	key   []byte
	value []byte // in a leaf
	page  uint64 // in a branch
}

func elementsOf(page []byte, leaf bool) ([]element, error) {
	count := int(native.Uint16(page[10:]))
	if pageHeader+count*elementHeader > len(page) {
		return nil, fmt.Errorf("%d elements do not fit in", count)
	}
	elements := make([]element, count)
	for i := range elements {
		e := page[pageHeader+i*elementHeader:]
		var flags, pos, keySize, valueSize uint32
		if leaf {
			flags, pos, keySize, valueSize = native.Uint32(e), native.Uint32(e[4:]), native.Uint32(e[8:]), native.Uint32(e[12:])
		} else {
			pos, keySize = native.Uint32(e), native.Uint32(e[4:])
			elements[i].page = native.Uint64(e[8:])
		}
		if uint64(pos)+uint64(keySize)+uint64(valueSize) > uint64(len(e)) {
			return nil, fmt.Errorf("key %d goes beyond the page", i)
		}
		elements[i].flags = flags
		elements[i].key = e[pos : pos+keySize]
		elements[i].value = e[pos+keySize:][:valueSize]
	}
	return elements, nil
}

// buckets visits a leaf of the root. It is a bucket, on pages of its own or, if it
// is small, inline.
func (c *pageCheck) buckets(e element) error {
	if e.flags != bucketElement || len(e.value) < bucketHeader {
		return fmt.Errorf("is no bucket")
	}
	if root := native.Uint64(e.value); root != 0 {
		return c.tree(root, nil, nil, rows)
	}
	page := e.value[bucketHeader:]
	if len(page) < pageHeader || native.Uint16(page[8:]) != leafPage {
		return fmt.Errorf("the bucket has no page")
	}
	elements, err := elementsOf(page, true)
	if err != nil {
		return err
	}
	for i, e := range elements {
		if i > 0 && bytes.Compare(elements[i-1].key, e.key) >= 0 {
			return fmt.Errorf("key %d of the bucket is out of order", i)
		}
		if err := rows(e); err != nil {
			return err
		}
	}
	return nil
}

// rows visits a leaf of a bucket.
func rows(e element) error {
	if e.flags != 0 {
		return fmt.Errorf("is no row")
	}
	return nil
}

// freelist checks that no page is both free and in use, nor twice in the list.
func (c *pageCheck) freelist(id uint64) error {
	b, err := c.page(id)
	if err != nil {
		return fmt.Errorf("free list: %w", err)
	}
	if flags := native.Uint16(b[8:]); flags != freelistPage {
		return fmt.Errorf("page %d: is no free list, but %#x", id, flags)
	}
	count, ids := uint64(native.Uint16(b[10:])), b[pageHeader:]
	if count == 0xFFFF { // the field is too small: the first id is the count
		count, ids = native.Uint64(ids), ids[8:]
	}
	if count > uint64(len(ids)/8) {
		return fmt.Errorf("page %d: %d free pages do not fit in", id, count)
	}
	for ; count > 0; count, ids = count-1, ids[8:] {
		free := native.Uint64(ids)
		if free < 2 || free >= c.end || c.used[free] {
			return fmt.Errorf("page %d: is in the free list, and in use or missing", free)
		}
		c.used[free] = true
	}
	return nil
}

#include "daemon/core/recording/catalogue/catalogue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sqlite3.h>
#include <sys/stat.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <utility>

#include "daemon/core/recording/catalogue/catalogue_seal.h"
#include "daemon/core/recording/files/recording_files.h"
#include "tests/support/recording/known_recording.h"
#include "tests/support/temp_dir.h"

namespace cgdebug::recording {
namespace {

namespace fs = std::filesystem;
using testing_support::AppendAt;

// The rows that `sql` gives, one per line.
std::string Query(const std::string& path, const std::string& sql) {
  sqlite3* database = nullptr;
  EXPECT_EQ(sqlite3_open_v2(path.c_str(), &database, SQLITE_OPEN_READONLY, nullptr), SQLITE_OK);
  std::string text;
  const auto add = [](void* to, int columns, char** values, char**) {
    for (int i = 0; i < columns; ++i) {
      *static_cast<std::string*>(to) += std::string(values[i] ? values[i] : "NULL") + "|";
    }
    *static_cast<std::string*>(to) += "\n";
    return 0;
  };
  char* error = nullptr;
  EXPECT_EQ(sqlite3_exec(database, sql.c_str(), add, &text, &error), SQLITE_OK) << error;
  sqlite3_free(error);
  sqlite3_close(database);
  return text;
}

std::string Dump(const std::string& path) {
  std::string text;
  for (const char* table : {"progress", "run", "session", "probe", "snapshot", "loss", "mark"}) {
    text += Query(path, std::string("select * from ") + table + " order by 1");
  }
  return text;
}

class Catalogue : public testing::Test {
 protected:
  void SetUp() override {
    WriterOptions options;
    options.roll_bytes = 30'000;
    auto writer = RecordingWriter::Open(path_, options);
    ASSERT_TRUE(writer.ok());
    writer_ = *std::move(writer);
    const auto session = writer_->AddSession(testing_support::SessionOf());
    ASSERT_TRUE(writer_->AddSlot(testing_support::FloatSlot(*session, "small", 8, 0)).ok());
    ASSERT_TRUE(writer_->AddSlot(testing_support::FloatSlot(*session, "large", 1024, 1)).ok());
  }
  // A catalogue of a few snapshots that nobody writes to any more. Returns its rows.
  std::string WriteSmall() {
    Append(1, 3);
    EXPECT_TRUE(writer_->Close(StopReason::kRequested).ok());
    writer_.reset();
    EXPECT_TRUE(UpdateCatalogue(path_).ok());
    return Dump(file_);
  }
  Result<std::uint64_t> Rebuild() {
    fs::remove(file_);
    fs::remove(SealPath(file_));
    return UpdateCatalogue(path_);
  }
  void Append(std::uint64_t first, std::uint64_t last) {
    for (std::uint64_t replay = first; replay <= last; ++replay) {
      AppendAt(writer_.get(), 0, replay, 8);
      AppendAt(writer_.get(), 1, replay, 1024);
    }
  }

  testing_support::TempDir dir_;
  std::string path_ = dir_ / "a.cgrec";
  std::string file_ = CataloguePath(path_);
  std::unique_ptr<RecordingWriter> writer_;
};

TEST_F(Catalogue, ACatalogueThatGrewAndARebuiltOneHoldTheSameRows) {
  for (std::uint64_t first = 1; first <= 30; first += 5) {
    Append(first, first + 4);
    ASSERT_TRUE(UpdateCatalogue(path_).ok());
  }
  Loss loss;
  loss.slot = 1;
  loss.count = 3;
  loss.first_ordinal = 31;
  loss.last_ordinal = 33;
  loss.after_replay = 30;
  ASSERT_TRUE(writer_->AddLoss(loss).ok());
  ASSERT_TRUE(writer_->Close(StopReason::kRequested).ok());
  ASSERT_TRUE(UpdateCatalogue(path_).ok());
  const std::string grown = Dump(file_);
  EXPECT_EQ(Query(file_, "select count(*) from snapshot"), "60|\n");
  ASSERT_TRUE(Rebuild().ok());
  EXPECT_EQ(Dump(file_), grown);
  EXPECT_EQ(UpdateCatalogue(path_).value(), 0u);
}

TEST_F(Catalogue, AnswersWhereAValueIsAndWhatItWas) {
  Append(1, 3);
  ASSERT_TRUE(writer_->Close(StopReason::kRequested).ok());
  ASSERT_TRUE(UpdateCatalogue(path_).ok());
  EXPECT_EQ(Query(file_,
                  "select replay, min, nan from v_snapshots where probe = 'large' "
                  "and replay = 2"),
            "2|1002.0|0|\n");
  const auto reader = *RecordingReader::Open(path_);
  const auto ref = reader->Find(1, 2);
  Record record;
  ASSERT_EQ(reader->segment(ref->segment).Read(ref->offset, &record), ReadStatus::kRecord);
  EXPECT_EQ(Query(file_,
                  "select segment, offset, length from v_snapshots where probe = 'large' "
                  "and replay = 2"),
            std::to_string(ref->segment + 1) + "|" + std::to_string(record.payload_offset()) +
                "|4096|\n");
  EXPECT_EQ(Query(file_, "select * from v_gaps"), "");
  EXPECT_EQ(Query(file_, "select * from v_first_nonfinite"), "");
}

TEST_F(Catalogue, SaysHowEachComparisonCameOut) {
  const auto values = testing_support::ValuesAt(0, 1, 8);
  for (const std::uint64_t mismatched : {0, 3}) {
    Snapshot snapshot = testing_support::SnapshotAt(0, mismatched + 1, values);
    snapshot.compared = true;
    snapshot.comparison = {mismatched, 0.25 * static_cast<double>(mismatched), 0.5};
    ASSERT_TRUE(writer_->Append(snapshot, std::as_bytes(std::span(values))).ok());
  }
  Append(9, 9);  // these were not compared
  ASSERT_TRUE(writer_->Close(StopReason::kRequested).ok());
  ASSERT_TRUE(UpdateCatalogue(path_).ok());
  EXPECT_EQ(Query(file_, "select replay, mismatched, count, max_abs, max_rel from v_comparisons"),
            "1|0|8|NULL|NULL|\n4|3|8|0.75|0.5|\n");
}

// As TensorStats leaves them: it is unknown whether two of them are equal.
TEST_F(Catalogue, SnapshotsWithoutValuesHaveNoHashAndEqualNoOther) {
  for (const std::uint64_t replay : {1, 2}) {
    Snapshot snapshot = testing_support::SnapshotAt(0, replay, {});
    snapshot.stats_only = true;
    ASSERT_TRUE(writer_->Append(snapshot, {}).ok());
  }
  ASSERT_TRUE(writer_->Close(StopReason::kRequested).ok());
  ASSERT_TRUE(UpdateCatalogue(path_).ok());
  EXPECT_EQ(Query(file_, "select count(*), count(hash) from snapshot"), "2|0|\n");
  EXPECT_EQ(Query(file_, "select count(*) from snapshot a join snapshot b on a.hash = b.hash"),
            "0|\n");
}

TEST_F(Catalogue, AHashThatIsKnownWithoutValuesIsThere) {
  Snapshot snapshot = testing_support::SnapshotAt(0, 1, {});
  snapshot.stats_only = true;
  snapshot.payload_hash = 0xabc;
  ASSERT_TRUE(writer_->Append(snapshot, {}).ok());
  ASSERT_TRUE(writer_->Close(StopReason::kRequested).ok());
  ASSERT_TRUE(UpdateCatalogue(path_).ok());
  EXPECT_EQ(Query(file_, "select hash from snapshot"), "0000000000000abc|\n");
}

TEST_F(Catalogue, ADamagedOrForeignCatalogueIsRebuilt) {
  Append(1, 10);
  ASSERT_TRUE(writer_->Close(StopReason::kRequested).ok());
  ASSERT_TRUE(UpdateCatalogue(path_).ok());
  const std::string good = Dump(file_);
  std::ofstream(file_, std::ios::trunc) << "rubbish, rubbish, rubbish and more of it";
  ASSERT_TRUE(UpdateCatalogue(path_).ok());
  EXPECT_EQ(Dump(file_), good);
  // Cut off behind its back.
  std::filesystem::resize_file(path_ + "/segment-000001.cgd", 12'000);
  std::filesystem::remove(path_ + "/segment-000002.cgd");
  ASSERT_TRUE(Rebuild().ok());
  EXPECT_NE(Dump(file_), good);
}

TEST_F(Catalogue, RowsOfWhatWasCutOffSinceAreGone) {
  Append(1, 3);
  ASSERT_TRUE(writer_->Close(StopReason::kRequested).ok());
  writer_.reset();
  ASSERT_TRUE(UpdateCatalogue(path_).ok());
  EXPECT_EQ(Query(file_, "select count(*) from snapshot"), "6|\n");
  const auto ref = (*RecordingReader::Open(path_))->Find(1, 2);
  ASSERT_TRUE(ref);
  std::filesystem::resize_file(path_ + "/segment-000001.cgd", ref->offset);
  ASSERT_TRUE(UpdateCatalogue(path_).ok());
  EXPECT_EQ(Query(file_, "select count(*) from snapshot"), "3|\n");
}

TEST_F(Catalogue, RecordsBehindAHoleAreTakenInAtOnce) {
  Append(1, 3);
  ASSERT_TRUE(writer_->Close(StopReason::kRequested).ok());
  writer_.reset();  // zeros in front of a writer are what it has not written yet
  {
    const auto reader = *RecordingReader::Open(path_);
    const auto ref = reader->Find(0, 2);
    Record record;
    ASSERT_EQ(reader->segment(ref->segment).Read(ref->offset, &record), ReadStatus::kRecord);
    std::fstream file(path_ + "/segment-000001.cgd", std::ios::in | std::ios::out);
    file.seekp(static_cast<std::streamoff>(ref->offset));
    file << std::string(record.next() - ref->offset, '\0');
  }
  ASSERT_TRUE(Rebuild().ok());
  EXPECT_EQ(Query(file_, "select count(*) from snapshot"), "5|\n");
  EXPECT_EQ(UpdateCatalogue(path_).value(), 0u);
}

TEST_F(Catalogue, ASegmentThatCouldNotBeReadForAWhileIsTakenInWhenItCan) {
  Append(1, 30);
  ASSERT_TRUE(writer_->Close(StopReason::kRequested).ok());
  writer_.reset();
  ASSERT_TRUE(UpdateCatalogue(path_).ok());
  const std::string whole = Dump(file_);
  const std::string second = path_ + "/segment-000002.cgd";
  ASSERT_TRUE(std::filesystem::exists(path_ + "/segment-000003.cgd"));
  std::filesystem::rename(second, dir_ / "aside");
  std::ofstream(second) << "not there yet";
  ASSERT_TRUE(Rebuild().ok());
  EXPECT_NE(Dump(file_), whole);
  EXPECT_EQ(Query(file_, "select count(*) from snapshot where replay = 30"), "2|\n");
  std::filesystem::rename(dir_ / "aside", second);
  EXPECT_GT(UpdateCatalogue(path_).value(), 0u);
  EXPECT_EQ(Dump(file_), whole);
}

TEST_F(Catalogue, RowsOfASegmentThatWasRemovedAreGone) {
  Append(1, 30);
  ASSERT_TRUE(writer_->Close(StopReason::kRequested).ok());
  writer_.reset();
  ASSERT_TRUE(UpdateCatalogue(path_).ok());
  std::filesystem::remove(path_ + "/segment-000002.cgd");
  ASSERT_TRUE(UpdateCatalogue(path_).ok());
  EXPECT_EQ(Query(file_, "select count(*) from snapshot where segment = 2"), "0|\n");
  EXPECT_EQ(Query(file_, "select count(*) from snapshot where replay = 30"), "2|\n");
}

TEST_F(Catalogue, ARecordingThatIsCutOffBehindARecordIsNotCataloguedAnewEachTime) {
  Append(1, 2);
  ASSERT_TRUE(writer_->Close(StopReason::kRequested).ok());
  {
    const auto reader = *RecordingReader::Open(path_);
    const auto ref = reader->Find(0, 2);
    Record record;
    ASSERT_EQ(reader->segment(ref->segment).Read(ref->offset, &record), ReadStatus::kRecord);
    const std::uint64_t end = record.payload_offset() + record.header.payload_bytes;
    ASSERT_LT(end, record.next());
    std::filesystem::resize_file(path_ + "/segment-000001.cgd", end);
  }
  ASSERT_TRUE(Rebuild().ok());
  EXPECT_EQ(Query(file_, "select count(*) from snapshot"), "3|\n");
  EXPECT_EQ(UpdateCatalogue(path_).value(), 0u);
}

TEST_F(Catalogue, ACatalogueThatAnotherProcessWritesIsLeftAlone) {
  Append(1, 2);
  ASSERT_TRUE(UpdateCatalogue(path_).ok());
  sqlite3* other = nullptr;
  ASSERT_EQ(sqlite3_open(file_.c_str(), &other), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(other, "begin immediate", nullptr, nullptr, nullptr), SQLITE_OK);
  struct stat before = {}, after = {};
  ASSERT_EQ(stat(file_.c_str(), &before), 0);
  EXPECT_FALSE(UpdateCatalogue(path_).ok());
  ASSERT_EQ(stat(file_.c_str(), &after), 0);
  EXPECT_EQ(before.st_ino, after.st_ino);
  sqlite3_close(other);
}

// --- a catalogue is believed only as it was written ---------------------------------------------

#if defined(CGDEBUG_SANITIZED)
constexpr std::size_t kBetweenBits = 67;
#else
constexpr std::size_t kBetweenBits = 1;
#endif

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void WriteFile(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

TEST_F(Catalogue, EveryBitOfItIsInItsSeal) {
  WriteSmall();
  std::string bytes = ReadFile(file_);
  const auto seal = ReadSeal(file_);
  ASSERT_TRUE(seal);
  const auto read = [&](std::uint64_t offset, std::span<std::byte> buffer) {
    std::memcpy(buffer.data(), bytes.data() + offset, buffer.size());
    return true;
  };
  ASSERT_EQ(MakeSeal(seal->recording, bytes.size(), read), seal);
  for (std::size_t bit = 0; bit < bytes.size() * 8; bit += kBetweenBits) {
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
    ASSERT_NE(MakeSeal(seal->recording, bytes.size(), read), seal) << bit;
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
  }
}

TEST_F(Catalogue, ABitThatWasFlippedInItOrItsSealChangesNoAnswer) {
  const std::string rows = WriteSmall();
  for (const auto& [path, stride] : {std::pair(file_, std::size_t{2003}), {SealPath(file_), 7}}) {
    const std::string good = ReadFile(path);
    const std::string catalogue = ReadFile(file_), seal = ReadFile(SealPath(file_));
    for (std::size_t bit = 0; bit < good.size() * 8; bit += stride) {
      std::string bytes = good;
      bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
      WriteFile(file_, catalogue);
      WriteFile(SealPath(file_), seal);
      WriteFile(path, bytes);
      ASSERT_TRUE(UpdateCatalogue(path_).ok()) << path << " bit " << bit;
      ASSERT_EQ(Dump(file_), rows) << path << " bit " << bit;
    }
  }
}

TEST_F(Catalogue, TheCatalogueOfAnotherRecordingIsNotBelieved) {
  const std::string rows = WriteSmall();
  const std::string other = dir_ / "b.cgrec";
  auto writer = *RecordingWriter::Open(other, {});
  const auto session = writer->AddSession(testing_support::SessionOf());
  ASSERT_TRUE(writer->AddSlot(testing_support::FloatSlot(*session, "small", 8, 0)).ok());
  for (std::uint64_t replay = 1; replay <= 3; ++replay) AppendAt(writer.get(), 0, replay, 8);
  ASSERT_TRUE(writer->Close(StopReason::kRequested).ok());
  ASSERT_TRUE(UpdateCatalogue(other).ok());
  for (const auto& path_of : {+[](const std::string& path) { return path; }, &SealPath}) {
    WriteFile(path_of(file_), ReadFile(path_of(CataloguePath(other))));
  }
  ASSERT_TRUE(UpdateCatalogue(path_).ok());
  EXPECT_EQ(Dump(file_), rows);
}

// The uuid is the same, and so are the numbers of the records.
TEST_F(Catalogue, TheCatalogueOfACopyThatWentOnDifferentlyIsNotBelieved) {
  WriteSmall();
  const std::string other = dir_ / "b.cgrec";
  fs::copy(path_, other);
  for (const std::string& path : {path_, other}) {
    auto writer = *RecordingWriter::Open(path, {});
    const auto values = testing_support::ValuesAt(path == other ? 7 : 0, 4, 8);
    ASSERT_TRUE(
        writer->Append(testing_support::SnapshotAt(0, 4, values), std::as_bytes(std::span(values)))
            .ok());
    // The last record differs, as its time does.
    ASSERT_TRUE(writer->Close(StopReason::kRequested).ok());
    writer.reset();
    ASSERT_TRUE(UpdateCatalogue(path).ok());
  }
  const std::string rows = Dump(file_);
  ASSERT_NE(Dump(CataloguePath(other)), rows);
  for (const auto& path_of : {+[](const std::string& path) { return path; }, &SealPath}) {
    WriteFile(path_of(file_), ReadFile(path_of(CataloguePath(other))));
  }
  ASSERT_TRUE(UpdateCatalogue(path_).ok());
  EXPECT_EQ(Dump(file_), rows);
}

TEST_F(Catalogue, ACopyOfASegmentAddsNoRows) {
  const std::string rows = WriteSmall();
  fs::copy(path_ + "/segment-000001.cgd", path_ + "/segment-000007.cgd");
  fs::copy(path_ + "/segment-000001.cgd", path_ + "/segment-000001 (1).cgd");
  ASSERT_TRUE(Rebuild().ok());
  EXPECT_EQ(Dump(file_), rows);
}

TEST_F(Catalogue, EverythingInTheFolderIsForItsOwnerAlone) {
  const mode_t before = umask(022);
  const std::string path = dir_ / "deep/er/b.cgrec";
  auto writer = *RecordingWriter::Open(path, {});
  ASSERT_TRUE(writer->AddSession(testing_support::SessionOf()).ok());
  ASSERT_TRUE(UpdateCatalogue(path).ok());
  umask(before);
  EXPECT_EQ(fs::status(path).permissions(), fs::perms::owner_all);
  for (const fs::directory_entry& entry : fs::directory_iterator(path)) {
    EXPECT_EQ(entry.status().permissions(), fs::perms::owner_read | fs::perms::owner_write)
        << entry.path();
  }
}

TEST_F(Catalogue, NothingIsWrittenWhereALinkPoints) {
  const std::string rows = WriteSmall();
  const std::string precious = dir_ / "precious";
  for (const bool exists : {false, true}) {
    if (exists) WriteFile(precious, "what it was");
    for (const std::string& link : {file_, SealPath(file_), path_ + "/lock"}) {
      fs::remove(link);
      fs::create_symlink(precious, link);
    }
    ASSERT_TRUE(UpdateCatalogue(path_).ok());
    EXPECT_EQ(Dump(file_), rows);
    EXPECT_FALSE(fs::is_symlink(file_));
    EXPECT_FALSE(LockForWriting(path_).ok());
    EXPECT_FALSE(RecordingWriter::Open(path_, {}).ok());
    EXPECT_EQ(fs::exists(precious), exists);
    if (exists) {
      EXPECT_EQ(ReadFile(precious), "what it was");
    }
  }
}

TEST_F(Catalogue, AFolderBehindALinkHasOneToo) {
  const std::string rows = WriteSmall();
  fs::create_directory_symlink(path_, dir_ / "link.cgrec");
  EXPECT_EQ(UpdateCatalogue(dir_ / "link.cgrec").value(), 0u);
  EXPECT_EQ(Dump(dir_ / "link.cgrec/catalogue.sqlite"), rows);
}

TEST_F(Catalogue, AFolderThatIsNotARecordingGetsNoCatalogue) {
  EXPECT_FALSE(UpdateCatalogue(dir_ / "").ok());
  EXPECT_FALSE(UpdateCatalogue(dir_ / "nothing").ok());
}

}  // namespace
}  // namespace cgdebug::recording
